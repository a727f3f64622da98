package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/tcpref"
	"softiser/benchmarks/internal/verbs"
	"softiser/rdma"
)

// region is what a helper has to walk over, bytes.
const region = 1 << 30

// helpers are the hidden subcommands with which the harness starts itself as
// server or client, so that each side is a process that can be pinned.
func helpers() []*cobra.Command {
	return slices.Concat(verbsHelpers(), udpHelpers(), tcpHelpers())
}

// pair is a server and the client that measures it. Both know its address, and the client
// prints its result as JSON.
func pair[R any](name string, serve func(ctx context.Context, addr string) error, run func(ctx context.Context, addr string) (R, error)) (server, client *cobra.Command) {
	var addr string
	server = &cobra.Command{Use: name + "-server", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), addr) }}
	client = &cobra.Command{Use: name + "-client", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := run(cmd.Context(), addr)
			if err != nil {
				return err
			}
			return json.NewEncoder(os.Stdout).Encode(r)
		}}
	for _, c := range []*cobra.Command{server, client} {
		c.Flags().StringVar(&addr, "addr", "", "address")
	}
	return server, client
}

// verbsHelpers measure the verbs alone, over either provider.
func verbsHelpers() []*cobra.Command {
	var roce bool
	provider := func() rdma.Provider {
		if roce {
			return rdma.ProviderRoCE
		}
		return rdma.ProviderIWARP
	}
	var o verbs.Options
	var qps int
	server, client := pair("verbs",
		func(ctx context.Context, addr string) error {
			return verbs.Serve(ctx, addr, provider(), region, os.Stderr)
		},
		func(ctx context.Context, addr string) (*verbs.Result, error) {
			o.Provider = provider()
			return verbs.Run(ctx, addr, o, max(qps, 1))
		})
	for _, c := range []*cobra.Command{server, client} {
		c.Flags().BoolVar(&roce, "roce", false, "over RoCE")
	}
	fs := client.Flags()
	fs.StringVar(&o.Op, "op", "write", "write, read, send, ping-send or ping-write")
	fs.IntVar(&o.Size, "size", 4096, "bytes per message")
	fs.IntVar(&o.Depth, "depth", 1, "messages outstanding")
	fs.IntVar(&qps, "qps", 1, "queue pairs that do so at once")
	fs.IntVar(&o.Region, "region", 0, "bytes to walk over")
	fs.BoolVar(&o.CRC, "crc", false, "MPA CRC")
	fs.BoolVar(&o.GSO, "gso", true, "large FPDUs")
	fs.DurationVar(&o.BusyPoll, "busy-poll", 0, "spin before sleeping")
	fs.BoolVar(&o.AutoPoll, "auto-poll", false, "spin where that pays, instead of --busy-poll")
	fs.StringVar(&o.Congestion, "congestion", "auto", "TCP congestion control: auto, host or a name")
	fs.DurationVar(&o.Time, "time", 0, "duration")
	return []*cobra.Command{server, client}
}

// udpHelpers and tcpHelpers measure plain sockets.
func udpHelpers() []*cobra.Command {
	var o tcpref.Options
	server, client := pair("udp", tcpref.ServeUDP,
		func(ctx context.Context, addr string) (*tcpref.Result, error) { return tcpref.RunUDP(ctx, addr, o) })
	fs := client.Flags()
	fs.IntVar(&o.Size, "size", 4096, "bytes per message")
	fs.DurationVar(&o.Time, "time", 0, "duration")
	return []*cobra.Command{server, client}
}

func tcpHelpers() []*cobra.Command {
	var cc string
	var o tcpref.Options
	server, client := pair("tcp",
		func(ctx context.Context, addr string) error {
			return tcpref.Serve(ctx, addr, cc, region, os.Stderr)
		},
		func(ctx context.Context, addr string) (*tcpref.Result, error) { return tcpref.Run(ctx, addr, o) })
	server.Flags().StringVar(&cc, "congestion", "auto", "TCP congestion control: auto, host or a name")
	fs := client.Flags()
	fs.StringVar(&o.Op, "op", "ping", "ping, spin or paced")
	fs.IntVar(&o.Size, "size", 4096, "bytes per message")
	fs.Int64Var(&o.Rate, "rate", 0, "bytes per second")
	fs.StringVar(&o.Congestion, "congestion", "auto", "TCP congestion control: auto, host or a name")
	fs.DurationVar(&o.Time, "time", 0, "duration")
	return []*cobra.Command{server, client}
}
