package main

import (
	"encoding/json"
	"os"

	"github.com/spf13/cobra"

	"softiser/benchmarks/internal/tcpref"
	"softiser/benchmarks/internal/verbs"
)

// region is what a helper has to walk over, bytes.
const region = 1 << 30

// helpers are the hidden subcommands with which the harness starts itself as
// server or client, so that each side is a process that can be pinned.
func helpers() []*cobra.Command {
	var addr, cc string
	var roce bool
	verbsServer := &cobra.Command{Use: "verbs-server", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return verbs.Serve(cmd.Context(), addr, roce, region, os.Stderr)
	}}
	verbsServer.Flags().BoolVar(&roce, "roce", false, "over RoCE")
	var vo verbs.Options
	var qps int
	verbsClient := &cobra.Command{Use: "verbs-client", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		r, err := verbs.Run(cmd.Context(), addr, vo, max(qps, 1))
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}}
	fs := verbsClient.Flags()
	fs.StringVar(&vo.Op, "op", "write", "write, read, send, ping-send or ping-write")
	fs.IntVar(&vo.Size, "size", 4096, "bytes per message")
	fs.IntVar(&vo.Depth, "depth", 1, "messages outstanding")
	fs.IntVar(&qps, "qps", 1, "queue pairs that do so at once")
	fs.IntVar(&vo.Region, "region", 0, "bytes to walk over")
	fs.BoolVar(&vo.CRC, "crc", false, "MPA CRC")
	fs.BoolVar(&vo.GSO, "gso", true, "large FPDUs")
	fs.DurationVar(&vo.BusyPoll, "busy-poll", 0, "spin before sleeping")
	fs.BoolVar(&vo.AutoPoll, "auto-poll", false, "spin where that pays, instead of --busy-poll")
	fs.StringVar(&vo.Congestion, "congestion", "auto", "TCP congestion control: auto, host or a name")
	fs.DurationVar(&vo.Time, "time", 0, "duration")
	fs.BoolVar(&vo.RoCE, "roce", false, "over RoCE")

	udpServer := &cobra.Command{Use: "udp-server", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return tcpref.ServeUDP(cmd.Context(), addr)
	}}
	var uo tcpref.Options
	udpClient := &cobra.Command{Use: "udp-client", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		r, err := tcpref.RunUDP(cmd.Context(), addr, uo)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}}
	fs = udpClient.Flags()
	fs.IntVar(&uo.Size, "size", 4096, "bytes per message")
	fs.DurationVar(&uo.Time, "time", 0, "duration")

	tcpServer := &cobra.Command{Use: "tcp-server", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return tcpref.Serve(cmd.Context(), addr, cc, region, os.Stderr)
	}}
	tcpServer.Flags().StringVar(&cc, "congestion", "auto", "TCP congestion control: auto, host or a name")
	var to tcpref.Options
	tcpClient := &cobra.Command{Use: "tcp-client", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		r, err := tcpref.Run(cmd.Context(), addr, to)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}}
	fs = tcpClient.Flags()
	fs.StringVar(&to.Op, "op", "ping", "ping, spin or paced")
	fs.IntVar(&to.Size, "size", 4096, "bytes per message")
	fs.Int64Var(&to.Rate, "rate", 0, "bytes per second")
	fs.StringVar(&to.Congestion, "congestion", "auto", "TCP congestion control: auto, host or a name")
	fs.DurationVar(&to.Time, "time", 0, "duration")

	all := []*cobra.Command{verbsServer, verbsClient, udpServer, udpClient, tcpServer, tcpClient}
	for _, c := range all {
		c.Flags().StringVar(&addr, "addr", "", "address")
	}
	return all
}
