package nvmf_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"softiser/blockdev"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/rdma/rdmatest"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

// serveRoCE is serve with a portal for RoCE beside that for TCP. cfg connects over RoCE.
func serveRoCE(t *testing.T) (cfg Config, tcp string, dev blockdev.Device) {
	t.Helper()
	tcp, dev, srv := serve(t, func(c *target.Config, _ *targetnvmf.SubsystemConfig) {
		c.Portals = append(c.Portals, target.Portal{Listen: "roce://" + net.JoinHostPort(rdmatest.RoCEAddr().String(), "0")})
	})
	cfg = config(srv.Addrs()[1])
	cfg.Transport, cfg.LocalAddress = TransportRoCE, rdmatest.RoCEAddr()
	return cfg, tcp, dev
}

func TestOperationsRoCE(t *testing.T) {
	for _, queues := range []int{1, 3} {
		t.Run(fmt.Sprintf("queues=%d", queues), func(t *testing.T) {
			cfg, _, dev := serveRoCE(t)
			cfg.Queues = queues
			operations(t, cfg, dev)
		})
	}
}

// One volume, over RoCE and over TCP at once: each sees what the other has written.
func TestTwoWires(t *testing.T) {
	cfg, tcp, _ := serveRoCE(t)
	a, b := open(t, cfg), open(t, config(tcp))
	if s := a.Association().Describe(); !strings.Contains(s, "NVMe/RDMA, RoCE, path MTU 4096") {
		t.Error(s)
	}
	data, back := random(1<<20), make([]byte, 1<<20)
	for i, n := range []int{512, 4096, 12800, 128 << 10, 1 << 20} {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		if _, err := from.WriteAt(data[:n], 0); err != nil {
			t.Fatal(err)
		}
		if _, err := to.ReadAt(back[:n], 0); err != nil || !bytes.Equal(back[:n], data[:n]) {
			t.Errorf("%d bytes: %v, or other data", n, err)
		}
	}
	stop := make(chan struct{})
	wa, wb := load(t, a, 4, stop), loadFrom(t, b, 4, 1<<20, stop)
	for _, n := range []*Namespace{a, b} {
		await.True(t, "the load goes on", func() bool { return n.Stats().Completed > 200 })
	}
	close(stop)
	wa.Wait()
	wb.Wait()
}

// Each portal is in the discovery log as what it is, and only hosts that are told of RoCE
// are sent there.
func TestDiscoverRoCE(t *testing.T) {
	cfg, tcp, _ := serveRoCE(t)
	roce := cfg.Address
	ways := func(c Config) (all []string) {
		t.Helper()
		c.Subsystem = ""
		log, err := Discover(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range log.Records {
			if e.Subsystem == subNQN {
				all = append(all, fmt.Sprintf("%s %s %s %s", e.Scheme(), net.JoinHostPort(e.Address, e.Service), e.Family, e.Provider))
			}
		}
		return all
	}
	want := fmt.Sprint([]string{"nvme+tcp " + tcp + " ipv4 ", "nvme+rdma " + tcp + " ipv4 iwarp", "nvme+roce " + roce + " ipv4 roce-v2"})
	for _, c := range []Config{cfg, config(tcp), overRDMA(tcp)} {
		if got := fmt.Sprint(ways(c)); got != want {
			t.Errorf("over %v: %s, want %s", c.Transport, got, want)
		}
	}
}

func TestRefusedRoCE(t *testing.T) {
	cfg, tcp, _ := serveRoCE(t)
	host, _, _ := net.SplitHostPort(cfg.Address)
	other := cfg
	other.Address = net.JoinHostPort(host, "1")
	if _, err := Open(t.Context(), other); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	other = cfg
	other.Subsystem = "nqn.2026-11.softiser:other"
	var ce *ConnectError
	if _, err := Open(t.Context(), other); !errors.As(err, &ce) || ce.Status != 0x182 {
		t.Error(err)
	}
	// A port that speaks NVMe/TCP, and no RoCE, is told of as that.
	other = cfg
	other.Address = tcp
	var we *WrongTransportError
	if _, err := Open(t.Context(), other); !errors.As(err, &we) || !strings.Contains(err.Error(), "use nvme+tcp:// instead of nvme+roce://") {
		t.Error(err)
	}
	// Somebody else has RoCE's port of the local address.
	other = cfg
	other.LocalAddress = rdmatest.RoCEAddr()
	pc, err := net.ListenPacket("udp", net.JoinHostPort(other.LocalAddress.String(), "4791"))
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	if _, err := Open(t.Context(), other); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), "--local-address") {
		t.Error(err)
	}
	if n := Users(); n != 0 {
		t.Errorf("%d users of the device are left", n)
	}
}
