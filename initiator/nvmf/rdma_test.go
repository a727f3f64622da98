package nvmf_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	. "softiser/initiator/nvmf"
	"softiser/rdma"
	"softiser/target"
	targetnvmf "softiser/target/nvmf"
)

// offersCRC is a portal that leaves the CRC to the host.
func offersCRC(c *target.Config, _ *targetnvmf.SubsystemConfig) {
	c.Portals[0].CRC = target.CRCOffered
}

func overRDMA(addr string) Config {
	c := config(addr)
	c.Transport = TransportRDMA
	return c
}

func TestOperationsRDMA(t *testing.T) {
	for _, crc := range []rdma.CRCMode{rdma.CRCRequired, rdma.CRCOff} {
		for _, queues := range []int{1, 3} {
			t.Run(fmt.Sprintf("crc=%v queues=%d", crc, queues), func(t *testing.T) {
				addr, dev, _ := serve(t, offersCRC)
				cfg := overRDMA(addr)
				cfg.RDMA.CRC, cfg.Queues = crc, queues
				operations(t, cfg, dev)
			})
		}
	}
}

// The options reach the connection.
func TestOptionsRDMA(t *testing.T) {
	addr, _, _ := serve(t, offersCRC)
	for crc, want := range map[rdma.CRCMode]string{rdma.CRCRequired: "CRC on", rdma.CRCOff: "CRC off"} {
		cfg := overRDMA(addr)
		cfg.BusyPoll = rdma.BusyPollOff
		cfg.RDMA = RDMA{CRC: crc, Zerocopy: rdma.ZerocopyOff, MaxFPDU: 1400}
		n := open(t, cfg)
		if s := n.Association().Describe(); !strings.Contains(s, "NVMe/RDMA, ") || !strings.Contains(s, want) || !strings.Contains(s, "FPDU 1400") {
			t.Errorf("%s: want %s", s, want)
		}
	}
	cfg := overRDMA(addr)
	cfg.Keys.TLSKey = tlsKey
	var ce *ConfigError
	if _, err := Open(t.Context(), cfg); !errors.As(err, &ce) || !strings.Contains(err.Error(), "TLS is not for RDMA") {
		t.Error(err)
	}
}

// Both ends prove who they are over RDMA too.
func TestKeysRDMA(t *testing.T) {
	k := Keys{Secret: hostSecret, CtrlSecret: ctrlSecret}
	cfg := overRDMA(serveKeys(t, k))
	cfg.Keys, cfg.Queues = k, 2
	n := open(t, cfg)
	data, back := random(1<<20), make([]byte, 1<<20)
	if _, err := n.WriteAt(data, 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ReadAt(back, 4096); err != nil || !bytes.Equal(back, data) {
		t.Errorf("what was written is not read: %v", err)
	}
	cfg.Keys = Keys{}
	if _, err := Open(t.Context(), cfg); err == nil {
		t.Error("connected without a key")
	}
}

func TestReconnectRDMA(t *testing.T) {
	addr, _, _ := serve(t, nil)
	reconnects(t, overRDMA(addr))
}

func TestAllocationsRDMA(t *testing.T) {
	addr, _, _ := serve(t, nil)
	allocatesNothing(t, overRDMA(addr))
}

// What cannot be reached leaves nothing behind, and the next one is not in its way.
func TestRefusedRDMA(t *testing.T) {
	addr, _, _ := serve(t, nil)
	cfg := overRDMA("127.0.0.1:1")
	if _, err := Open(t.Context(), cfg); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	cfg = overRDMA(addr)
	cfg.Subsystem = "nqn.2026-11.softiser:other"
	var ce *ConnectError
	if _, err := Open(t.Context(), cfg); !errors.As(err, &ce) || ce.Status != 0x182 {
		t.Error(err)
	}
	addr, _, _ = serve(t, func(c *target.Config, _ *targetnvmf.SubsystemConfig) { c.Portals[0].NoNVMeRDMA = true })
	cfg = overRDMA(addr)
	if _, err := Open(t.Context(), cfg); err == nil {
		t.Error("a portal without RDMA was connected to")
	}
	if n := Users(); n != 0 {
		t.Errorf("%d users of the device are left", n)
	}
}
