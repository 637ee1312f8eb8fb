use strict;
use warnings;
use JSON::PP;

$| = 1;
my $json = JSON::PP->new->utf8->max_depth(1024);
while (my $line = <STDIN>) {
    my $message = eval { $json->decode($line) };
    if (!defined $message) {
        my $error = { code => -32700, message => "$@" };
        print $json->encode({ jsonrpc => "2.0", id => undef, error => $error }), "\n";
    } elsif (defined $message->{id} && defined $message->{method}) {
        my $result = { you_said => $message->{params}, to => $message->{method} };
        print $json->encode({ jsonrpc => "2.0", id => $message->{id}, result => $result }), "\n";
    }
}
