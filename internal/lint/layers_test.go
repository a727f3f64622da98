package lint

import (
	"strings"
	"testing"
)

// rule forbids imports: files whose folder lies under one of from may not
// import what lies under one of banned, except what lies under one of but. Tests
// may import anything.
type rule struct {
	from   []string
	except []string // folders below from that the rule leaves alone
	banned []string
	but    []string
	why    string
}

const (
	unix  = "golang.org/x/sys"
	viper = "github.com/spf13/viper"
	zap   = "go.uber.org/zap"
	prom  = "github.com/prometheus"
	cobra = "github.com/spf13/cobra"
)

func us(folders ...string) []string {
	out := make([]string, len(folders))
	for i, f := range folders {
		out[i] = module + "/" + f
	}
	return out
}

// leaves are the shared packages below everything else: rdma builds on them and on
// nothing beside them.
var leaves = []string{"internal/sockio", "internal/congestion", "internal/crc32c", "internal/fsm", "internal/memfault", "internal/peerorigin", "internal/resident", "internal/race"}

var rules = []rule{
	{from: []string{"target"}, banned: us("initiator"), why: "the two roles meet only at the internal codecs and datamovers"},
	{from: []string{"target/scsi"}, banned: us("target"), but: us("target/scsi", "target/volume"), why: "commands on volumes do not know which wire brings them"},
	{from: []string{"target/portal", "target/internal"}, banned: us("target"), but: us("target/internal"), why: "what all wires share knows none of them"},
	{from: []string{"target/iscsi"}, banned: us("target"), but: us("target/iscsi", "target/scsi", "target/volume", "target/portal", "target/internal"), why: "a front end knows the device server and the portals, not the server that puts it there, nor its neighbours"},
	{from: []string{"target"}, except: []string{"target/registry"}, banned: us("config", "target/registry"), why: "a server knows no file; the registry, above it, turns what one says into calls"},
	{from: []string{"initiator"}, banned: us("target"), why: "the two roles meet only at the internal codecs and datamovers"},
	{from: []string{"initiator/blockio"}, banned: []string{module}, but: us("blockdev", "initiator/blockio"), why: "what is above the wires knows none of them"},
	{from: []string{"initiator/bench", "initiator/nbd", "initiator/ublk"}, banned: us("internal/iscsi", "internal/iser", "internal/iscsitcp"), why: "loads and exports work on volumes, whatever the wire"},
	{from: []string{"rdma"}, banned: us("internal/iscsi", "internal/iser", "internal/iscsitcp", "internal/spc", "target", "initiator", "blockdev", "lvm", "config"),
		why: "verbs do not know what travels over them"},
	{from: []string{"rdma"}, except: []string{"rdma/rdmatest"}, banned: us("internal"), but: us(leaves...), why: "of what the repository shares, verbs use leaves alone, so that a provider can be read, and taken out, by itself"},
	{from: []string{"rdma/internal/verbs"}, banned: us("rdma", "internal"), but: us("rdma/internal/mem", "internal/fsm"), why: "what front and engines share knows no provider and no socket"},
	{from: []string{"rdma/internal"}, banned: us("rdma", "rdma/rdmatest"), but: us("rdma/internal"), why: "the front stands on the engines, never the other way"},
	{from: append([]string{"internal/buildinfo", "internal/cores", "internal/digits", "internal/durable", "internal/filelock", "internal/list", "internal/namelock", "internal/svgplot", "internal/systemd", "internal/terminal", "internal/uring"}, leaves...), except: []string{"internal/sockio/layertest"}, banned: []string{module}, but: us("internal/memfault", "internal/race", "internal/congestion"), why: "a leaf imports nothing of ours, save how it survives memory that faults, what the race detector is to know and whether both ends are on one host"},
	{from: []string{"rdma"}, banned: []string{zap, prom}, why: "verbs do not print; they return errors, count and offer hooks"},
	{from: []string{"internal/rdmamsg"}, banned: us("internal/iscsi", "internal/iser", "internal/iscsitcp", "internal/spc", "target", "initiator", "blockdev", "lvm", "config"),
		why: "the message pump serves every protocol over RDMA and knows the words of none"},
	{from: []string{"internal/pdustream"}, banned: []string{module}, but: us("internal/sockio", "internal/segs", "internal/crc32c", "internal/memfault", "internal/resident", "internal/race"),
		why: "the stream engine serves every protocol over TCP and knows the words of none"},
	{from: []string{"internal/spc", "internal/iscsi", "internal/crc32c", "rdma/internal/wire", "rdma/internal/roce/mad", "rdma/internal/roce/packet", "rdma/internal/mem"}, banned: []string{module, "github.com", "golang.org", "go.uber.org"},
		except: []string{"internal/iscsi/datamovertest"}, but: us("internal/iscsi", "internal/spc", "internal/crc32c", "internal/fsm", "internal/memfault", "rdma/internal/wire"), why: "codecs stand on the standard library alone"},
	{from: []string{"internal/iscsi", "internal/spc", "rdma/internal/wire", "rdma/internal/roce/mad", "rdma/internal/roce/packet"}, banned: []string{"net", "os", "log"}, but: []string{"net/netip", "net/url"},
		except: []string{"internal/iscsi/datamovertest"}, why: "codecs do no I/O"},
	{from: []string{"target/volume", "target/internal/statefile"}, banned: us("target", "internal", "config", "rdma", "cmd"), but: us("target/internal/statefile", "internal/cores", "internal/digits", "internal/durable", "internal/fsm", "internal/list"),
		why: "a volume knows no protocol; front ends translate theirs into its terms"},
	{from: []string{"blockdev"}, banned: us("target", "initiator", "rdma", "internal/iscsi", "lvm", "config"), why: "devices lie below everything that serves them"},
	{from: []string{"lvm"}, except: []string{"lvm/cli"}, banned: us("target", "initiator", "rdma", "internal/iscsi", "config"), why: "a logical volume is a device; it does not know who serves it"},
	{from: []string{"."}, except: []string{"config", "internal/lint"}, banned: []string{viper}, why: "viper's untyped keys stay behind the typed model of config"},
	{from: []string{"."}, except: []string{"cmd"}, banned: []string{prom}, why: "metrics are attached in the binary; the layers below count with atomics"},
	{from: []string{"config"}, banned: us("target", "initiator", "rdma", "blockdev", "lvm", "internal"), but: us("internal/sizeflag", "internal/nvme/dhchap", "internal/nvme/tlspsk", "internal/certs"),
		why: "the file model is data, which others turn into objects; only what a key looks like is told where it is read"},
	{from: []string{"blockdev", "lvm", "internal", "rdma", "config"}, except: []string{"lvm/cli", "internal/rdmatools", "internal/helptest", "internal/usage"}, banned: []string{cobra}, why: "commands belong to the binaries and their tool packages"},
}

func TestLayers(t *testing.T) {
	checked := 0
	for _, f := range sources(t) {
		for _, r := range rules {
			if f.test || !inAny(f.pkg, r.from) || len(r.except) > 0 && inAny(f.pkg, r.except) {
				continue
			}
			for _, i := range f.imports {
				checked++
				if matches(i, r.banned) && !matches(i, r.but) {
					t.Errorf("%s imports %s: %s", f.path, i, r.why)
				}
			}
		}
	}
	if checked == 0 {
		t.Fatal("no import was checked")
	}
}

func inAny(pkg string, folders []string) bool {
	for _, d := range folders {
		if d == "." || under(pkg, d) {
			return true
		}
	}
	return false
}

func matches(name string, paths []string) bool {
	for _, p := range paths {
		if name == p || strings.HasPrefix(name, p+"/") {
			return true
		}
	}
	return false
}

// System calls that the standard library lacks are made in few places, each
// for one concern, so that a reader finds all of them.
func TestWhoMayImportSys(t *testing.T) {
	allowed := map[string]string{
		"internal/durable":       "renames that replace nothing",
		"internal/handover":      "descriptors on their way to another process",
		"internal/sockio":        "sockets of RDMA and of iSCSI over TCP",
		"internal/resident":      "what of a mapping is in memory",
		"rdma/internal/roce/udp": "sockets of RoCE",
		"internal/loopback":      "network namespaces of tests",
		"blockdev":               "mappings, holes, locks of backing files",
		"lvm":                    "block device ioctls and locks",
		"initiator/nbd":          "NBD sockets and /dev/nbdN",
		"initiator/ublk":         "memory and descriptors of /dev/ublkbN",
		"internal/uring":         "io_uring",
		"benchmarks":             "CPU placement and times",
		"interop":                "running guests",
		"cmd":                    "process limits",
		"internal/leaktest":      "descriptors that tests were started with",
		"internal/terminal":      "input that ends with its command, pseudo-terminals of tests",
	}
	for _, f := range sources(t) {
		if f.test || !importsUnder(f, unix) {
			continue
		}
		ok := false
		for d := range allowed {
			ok = ok || under(f.pkg, d)
		}
		if !ok {
			t.Errorf("%s imports %s; the packages that may are %v", f.path, unix, allowed)
		}
	}
}

func importsUnder(f file, p string) bool {
	for _, i := range f.imports {
		if under(i, p) {
			return true
		}
	}
	return false
}

// A grab bag has no topic, so everything ends up in it.
func TestNoGrabBags(t *testing.T) {
	for _, f := range sources(t) {
		switch f.ast.Name.Name {
		case "util", "utils", "common", "helpers", "misc":
			t.Errorf("%s: package %s names no topic", f.path, f.ast.Name.Name)
		}
	}
}
