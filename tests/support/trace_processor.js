// Perfetto's trace processor as a filter: RPC messages on stdin, its answers on stdout. The argument is the folder of
// Perfetto's UI, whose Web Worker `engine_bundle.js` runs here in a context that looks like one.
const fs = require("fs"), path = require("path"), vm = require("vm");

const folder = process.argv[2];
class XMLHttpRequest {
  open(_, name) { this.response = fs.readFileSync(path.join(folder, path.basename(name))); }
  send() {}
}
const scope = {
  TextDecoder, URL, XMLHttpRequest, performance, setTimeout, clearTimeout, setInterval, clearInterval,
  crypto: require("crypto").webcrypto,
  console: { log: console.error, warn: console.error, error: console.error },
  location: { href: "https://ui/" }, WorkerGlobalScope: Object,
};
scope.self = scope;
vm.createContext(scope);
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), scope, "engine_bundle.js");
const port = { postMessage: answer => process.stdout.write(answer) };
setImmediate(() => {
  scope.onmessage({ data: port });
  scope.bytes = fs.readFileSync(0);
  port.onmessage({ data: vm.runInContext("new Uint8Array(bytes)", scope) });
});
