package multipath_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"softiser/blockdev/mem"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
	"softiser/target/scsi"
	"softiser/target/targettest"
)

const nqn = "nqn.2026-11.softiser:paths"

// Two portals of one subsystem, and the same volume as a LUN beside them: paths that are cut
// or stalled are left, and used again when they are back.
func TestNamespacePaths(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0", CRC: target.CRCOffered}, {Listen: "127.0.0.1:0", CRC: target.CRCOffered}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: nqn, Namespaces: []targetnvmf.NamespaceConfig{{NSID: 1, Volume: vol}}}); err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(target.Target{Name: iqn + "one", LUNs: []target.LUN{{Name: "disk", LUConfig: scsi.LUConfig{Volume: vol}}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vol.Close() })
	targettest.Serve(t, srv)
	a, b := newLink(t, srv.Addrs()[0]), newLink(t, srv.Addrs()[1])
	host := func(addr string) multipath.Dialer {
		return multipath.Namespace(nvmf.Config{Address: addr, Subsystem: nqn, NSID: 1, KeepAlive: time.Second, ReconnectDelay: 200 * time.Millisecond, ConnectTimeout: 5 * time.Second})
	}
	cfg := multipath.Config{Policy: multipath.QueueDepth, CheckInterval: 500 * time.Millisecond, Paths: []multipath.Dialer{
		host(a.addr()), host(b.addr()), multipath.LUN(config(initiator.TransportTCP, srv.Addrs()[1], iqn+"one")),
	}}
	v, err := multipath.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	awaitState(t, v, "optimized* optimized* optimized*")
	ops, stop := load(t, v)
	defer stop()
	progress(t, ops)
	// A namespace follows the LUNs of its volume, and hosts are told.
	for _, s := range []struct {
		to   scsi.AccessState
		want string
	}{{scsi.Standby, "inaccessible inaccessible inaccessible"}, {scsi.ActiveOptimized, "optimized* optimized* optimized*"}} {
		if err := srv.SetAccessState(iqn+"one", 0, 1, s.to); err != nil {
			t.Fatal(err)
		}
		awaitState(t, v, s.want)
	}
	progress(t, ops)
	for _, fail := range []func(){a.cut, b.stall} {
		fail()
		await.True(t, "the path is left", func() bool { return strings.Contains(state(v), "down") })
		progress(t, ops)
		a.restore()
		b.restore()
		awaitState(t, v, "optimized* optimized* optimized*")
		await.True(t, "nothing waits any more", func() bool {
			for _, p := range v.Paths() {
				if p.Unknown > 0 {
					return false
				}
			}
			return true
		})
		progress(t, ops)
	}
}

// A raw command of NVMe goes to a path as it is.
func TestRawCommand(t *testing.T) {
	vol, err := mem.Open(mem.Config{Name: t.Name(), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0", CRC: target.CRCOffered}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddSubsystem(targetnvmf.SubsystemConfig{NQN: nqn, Namespaces: []targetnvmf.NamespaceConfig{{NSID: 1, Volume: vol}}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vol.Close() })
	targettest.Serve(t, srv)
	v, err := multipath.Open(t.Context(), multipath.Config{Paths: []multipath.Dialer{multipath.Namespace(nvmf.Config{Address: srv.Addrs()[0], Subsystem: nqn, NSID: 1})}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	flush := make([]byte, 64)
	flush[1] = 1 << 6 // SGLs, as fabrics want it
	if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpSQE, SQE: flush}); err != nil {
		t.Error(err)
	}
}
