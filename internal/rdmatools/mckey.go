package rdmatools

import (
	"context"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

type mckey struct {
	exchange
	group, bind string
	sender      bool
	settle      time.Duration
	wait        time.Duration
}

// mckeyCommand is the command mckey: members of a multicast group send to it, or receive.
func mckeyCommand() *cobra.Command {
	m := &mckey{}
	cmd := &cobra.Command{
		Use:   "mckey -m GROUP -b ADDRESS [-s]",
		Short: "Multicast over RoCE, compatible with rdma-core's mckey",
		Long: "Joins the group, and with -s sends to it; else it receives. All ends must be given the same -C and -S.\n" +
			"It fails when no datagram has come for --timeout.",
		Example: `  iser-initiator rdma mckey -m 239.1.2.3 -b 127.0.0.1      # receiver; or rdma-core's: mckey -m 239.1.2.3 -b ADDRESS
  iser-initiator rdma mckey -m 239.1.2.3 -b 127.0.0.2 -s   # sender; one process per address`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			m.out = cmd.OutOrStdout()
			return m.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&m.group, "multicast", "m", "", "address of the group, for example 239.1.2.3 or ff15::1")
	f.StringVarP(&m.bind, "bind", "b", "", "local address")
	f.BoolVarP(&m.sender, "sender", "s", false, "send")
	m.counts(f, "number of queue pairs", "datagrams per queue pair", "bytes per datagram")
	f.DurationVar(&m.settle, "settle", 3*time.Second, "pause after joining, for switches to learn of it (sender)")
	f.DurationVar(&m.wait, "timeout", 60*time.Second, "give up, as datagrams may be lost, when none has come for this long")
	return cmd
}

// run joins, and sends or receives.
func (m *mckey) run(ctx context.Context) error {
	if m.connections < 1 || m.connections > 1024 || m.count < 0 || m.count > 16384 || m.size < 0 {
		return usage.Errorf("mckey: want 1 to 1024 queue pairs (-c), 0 to 16384 datagrams (-C), no negative size (-S)")
	}
	if err := checkWait(m.wait); err != nil {
		return err
	}
	if m.settle < 0 {
		return usage.Errorf("--settle %v: want a time, such as 3s, or 0", m.settle)
	}
	if m.size == 0 { // as the original has it
		m.count = 0
	}
	group, err := netip.ParseAddr(m.group)
	if err != nil || !group.IsMulticast() {
		return usage.Errorf("mckey: -m %q: want the address of a multicast group", m.group)
	}
	local, err := netip.ParseAddr(m.bind)
	if err != nil {
		return usage.Errorf("mckey: -b %q: want a local IP address", m.bind)
	}
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	if err != nil {
		return err
	}
	defer dev.Close()
	role := "server"
	if m.sender {
		role = "client"
	}
	m.say("mckey: starting %s", role)
	nodes := make([]*datagramNode, m.connections)
	for i := range nodes {
		if nodes[i], err = newDatagramNode(dev, local, m.count, m.size, m.wait); err != nil {
			return err
		}
		defer nodes[i].close()
	}
	m.say("mckey: joining")
	for _, n := range nodes {
		if n.dest, err = n.qp.JoinMulticast(group); err != nil {
			return err
		}
		m.say("mckey: joined dgid: %v mlid 0x0 sl 0", netip.AddrFrom16(group.As16()))
	}
	start := time.Now()
	if err = m.transfer(ctx, nodes); err == nil {
		for _, n := range nodes {
			err = n.qp.LeaveMulticast(group)
		}
	}
	return m.end(err, start, map[string]any{"role": role})
}

// transfer sends or receives what each queue pair has to.
func (m *mckey) transfer(ctx context.Context, nodes []*datagramNode) error {
	if m.count == 0 {
		return nil
	}
	step := (*datagramNode).receive
	if m.sender {
		select {
		case <-time.After(m.settle):
		case <-ctx.Done():
			return ctx.Err()
		}
		m.say("initiating data transfers")
		step = (*datagramNode).sendAll
	} else {
		m.say("receiving data transfers")
	}
	for _, n := range nodes {
		if err := step(n, ctx); err != nil {
			return err
		}
	}
	m.say("data transfers complete")
	return nil
}
