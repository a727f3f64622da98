package connflags

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"softiser/initiator/nvmf"
	"softiser/rdma"
)

// hostOptions are those of an NVMe host, under the names that nvme-cli gives them.
type hostOptions struct {
	nqn, id        string
	queues         int
	keepAlive      int // seconds
	reconnectDelay int
	ctrlLoss       int
	headerDigest   bool
	dataDigest     bool
	keys           keyOptions
}

func (o *hostOptions) register(fs *pflag.FlagSet) {
	fs.StringVar(&o.nqn, "hostnqn", "", "NVMe: our NQN (default: /etc/nvme/hostnqn, or one derived from the machine)")
	fs.StringVar(&o.id, "hostid", "", "NVMe: our identifier, a UUID (default: that of the NQN)")
	fs.IntVar(&o.queues, "nr-queues", 1, "NVMe: I/O queues, each a connection")
	fs.IntVar(&o.keepAlive, "keep-alive-tmo", 5, "NVMe: keep alive timeout in seconds; 0: none")
	fs.IntVar(&o.reconnectDelay, "reconnect-delay", 5, "NVMe: longest time between attempts to connect again, in seconds")
	fs.IntVar(&o.ctrlLoss, "ctrl-loss-tmo", 120, "NVMe: hold I/O this many seconds while reconnecting; -1: for ever")
	fs.BoolVar(&o.headerDigest, "hdr-digest", false, "NVMe/TCP: header digests (CRC32C)")
	fs.BoolVar(&o.dataDigest, "data-digest", false, "NVMe/TCP: data digests (CRC32C)")
	o.keys.register(fs)
}

// apply completes the configuration of a host.
func (o *hostOptions) apply(c *nvmf.Config) error {
	for _, n := range []struct {
		name      string
		v, lo, hi int
	}{
		{"nr-queues", o.queues, 1, 128}, {"keep-alive-tmo", o.keepAlive, 0, 3600},
		{"reconnect-delay", o.reconnectDelay, 1, 3600}, {"ctrl-loss-tmo", o.ctrlLoss, -1, 1 << 24},
	} {
		if n.v < n.lo || n.v > n.hi {
			return fmt.Errorf("--%s %d: want %d to %d", n.name, n.v, n.lo, n.hi)
		}
	}
	c.HostNQN, c.Queues = o.nqn, o.queues
	if o.id != "" {
		b, err := hex.DecodeString(strings.ReplaceAll(o.id, "-", ""))
		if err != nil || len(b) != len(c.HostID) {
			return fmt.Errorf("--hostid %q: want a UUID, for example 5c1e8a3e-6a5f-4c0c-9b1e-2d6f1f3a7b10", o.id)
		}
		c.HostID = [16]byte(b)
	}
	seconds := func(n int) time.Duration { return time.Duration(n) * time.Second }
	if c.KeepAlive = seconds(o.keepAlive); o.keepAlive == 0 {
		c.KeepAlive = -1
	}
	c.ReconnectDelay, c.CtrlLossTimeout = seconds(o.reconnectDelay), seconds(o.ctrlLoss)
	if o.ctrlLoss == 0 {
		c.CtrlLossTimeout = 1 // at once
	}
	c.HeaderDigest, c.DataDigest = o.headerDigest, o.dataDigest
	if c.Reauthenticate = o.keys.again; o.keys.again < 0 {
		return fmt.Errorf("--dhchap-interval %v: want a time such as 1h, or 0", o.keys.again)
	}
	return o.keys.apply(&c.Keys)
}

// NVMe completes c with the options; what c says wins.
func (o *Options) NVMe(c *nvmf.Config) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := o.host.apply(c); err != nil {
		return err
	}
	c.QueueDepth, c.MaxTransfer = min(o.QueueDepth, maxNVMeDepth), int(o.MaxTransfer)
	c.SilencePing, c.SilenceProbe = o.silence()
	c.ConnectTimeout, c.CommandTimeout, c.Congestion = o.LoginTimeout, o.CommandTimeout, o.Congestion
	var err error
	if c.LocalAddress, err = o.localAddress(); err != nil {
		return err
	}
	if c.RDMA, err = o.rdma(); err != nil {
		return err
	}
	if c.BusyPoll, err = busyPoll(o.BusyPoll); err != nil {
		return err
	}
	verbose := o.Verbose
	c.OnEvent = func(e nvmf.Event) {
		if verbose || e.Kind.Trouble() {
			o.tell(e.String())
		}
	}
	return nil
}

// rdma returns the options of RDMA, whatever it carries.
func (o *Options) rdma() (r nvmf.RDMA, err error) {
	if r.CRC, err = rdma.ParseCRCMode(o.CRC); err != nil {
		return r, fmt.Errorf("--crc: %w", err)
	}
	if r.Zerocopy, err = rdma.ParseZerocopyMode(o.Zerocopy); err != nil {
		return r, fmt.Errorf("--zerocopy: %w", err)
	}
	r.LargeFPDU = o.LargeFPDU
	return r, nil
}

// maxNVMeDepth is the deepest I/O queue that a host asks for.
const maxNVMeDepth = 1023
