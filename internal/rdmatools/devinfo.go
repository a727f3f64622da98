package rdmatools

import (
	"fmt"

	"github.com/spf13/cobra"

	"softiser/rdma"
)

// DevInfo is the command devinfo: limits and abilities of the software device, in
// the manner of ibv_devinfo -v.
func DevInfo() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devinfo",
		Short: "Show the limits of the software RDMA device",
		Example: `  iser-initiator rdma devinfo
  iser-initiator rdma devinfo --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dev, err := rdma.Open(nil)
			if err != nil {
				return err
			}
			a := dev.Attr()
			out := cmd.OutOrStdout()
			if asJSON {
				return printJSON(out, map[string]any{
					"device": a.Name, "transport": "iWARP", "version": a.Version,
					"max_qp": a.MaxQP, "max_qp_wr": a.MaxQPWR, "max_cq": a.MaxCQ, "max_cqe": a.MaxCQE,
					"max_mr": a.MaxMR, "max_mw": a.MaxMR, "max_pd": a.MaxPD, "max_srq": a.MaxSRQ, "max_srq_wr": a.MaxSRQWR,
					"max_sge": a.MaxSGE, "max_inline": a.MaxInline, "max_qp_rd_atom": a.MaxIRD, "max_qp_init_rd_atom": a.MaxORD,
					"max_msg_size": a.MaxMsg, "local_dma_lkey": a.LocalDMALKey, "mem_mgt_extensions": a.FastRegistration,
					"mem_windows": a.MemWindows, "atomics": a.Atomics,
				})
			}
			row := func(name string, v any) { fmt.Fprintf(out, "\t%-22s%v\n", name+":", v) }
			fmt.Fprintf(out, "device: %s\n", a.Name)
			row("transport", "iWARP over TCP (software)")
			row("version", a.Version)
			row("max_qp", a.MaxQP)
			row("max_qp_wr", a.MaxQPWR)
			row("max_cq", a.MaxCQ)
			row("max_cqe", a.MaxCQE)
			row("max_mr", a.MaxMR)
			row("max_pd", a.MaxPD)
			row("max_srq", a.MaxSRQ)
			row("max_srq_wr", a.MaxSRQWR)
			row("max_sge", a.MaxSGE)
			row("max_inline", a.MaxInline)
			row("max_qp_rd_atom", a.MaxIRD)
			row("max_qp_init_rd_atom", a.MaxORD)
			row("max_msg_size", a.MaxMsg)
			row("local_dma_lkey", a.LocalDMALKey)
			row("mem_mgt_extensions", a.FastRegistration)
			row("mem_windows", a.MemWindows)
			row("atomics", a.Atomics)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
