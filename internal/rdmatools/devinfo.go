package rdmatools

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/rdma"
)

// devinfoCommand is the command devinfo: limits and abilities of the software devices, in the
// manner of ibv_devinfo -v.
func devinfoCommand() *cobra.Command {
	var asJSON, list bool
	var name string
	cmd := &cobra.Command{
		Use:   "devinfo",
		Short: "Show the limits of the software RDMA devices, of iWARP and of RoCE",
		Long:  "Shows what the devices of both providers can do, under the names of ibv_devinfo -v.",
		Example: `  iser-initiator rdma devinfo
  iser-initiator rdma devinfo -l
  iser-initiator rdma devinfo -d roce --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SilenceUsage = true
			if list && asJSON {
				return usage.Errorf("devinfo: -l does not go with --json, which has the names too")
			}
			attrs, err := devices(name)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case list:
				fmt.Fprintf(out, "%d HCAs found:\n", len(attrs))
				for i := range attrs {
					fmt.Fprintf(out, "\t%s\n", attrs[i].Name)
				}
				fmt.Fprintln(out)
			case asJSON:
				docs := make([]map[string]any, len(attrs))
				for i := range attrs {
					docs[i] = deviceJSON(&attrs[i])
				}
				return printJSON(out, map[string]any{"devices": docs})
			default:
				for i := range attrs {
					showDevice(out, &attrs[i])
				}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&name, "ib-dev", "d", "", "only this device, by its name or its provider: iwarp or roce")
	f.BoolVarP(&list, "list", "l", false, "print the names only")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.BoolP("verbose", "v", false, "print everything, which is always done; for ibv_devinfo's users")
	return cmd
}

// devices are the attributes of the devices of all providers, or of the one that is named.
func devices(name string) ([]rdma.DeviceAttr, error) {
	var attrs []rdma.DeviceAttr
	var names []string
	for _, p := range []rdma.Provider{rdma.ProviderIWARP, rdma.ProviderRoCE} {
		dev, err := rdma.Open(&rdma.DeviceConfig{Provider: p})
		if err != nil {
			return nil, err
		}
		a := dev.Attr()
		if err := dev.Close(); err != nil {
			return nil, err
		}
		names = append(names, a.Name, p.String())
		if name == "" || name == a.Name || name == p.String() {
			attrs = append(attrs, a)
		}
	}
	if len(attrs) == 0 {
		return nil, usage.Errorf("devinfo: -d %s: there is no such device; want one of %s", name, strings.Join(names, ", "))
	}
	return attrs, nil
}

// attribute is one line about a device.
type attribute struct {
	name  string
	value any
}

// attributes are what ibv_devinfo -v has a name for, then what is said about us beyond it.
func attributes(a *rdma.DeviceAttr) []attribute {
	types := make([]string, len(a.Types))
	for i, t := range a.Types {
		types[i] = t.String()
	}
	groups := a.MaxMulticastGroups
	perGroup := 0
	if groups > 0 {
		perGroup = a.MaxQP
	}
	return []attribute{
		{"max_mr_size", fmt.Sprintf("%#x", uint64(1)<<63-1)},
		{"max_qp", a.MaxQP},
		{"max_qp_wr", a.MaxQPWR},
		{"max_sge", a.MaxSGE},
		{"max_inline", a.MaxInline},
		{"max_cq", a.MaxCQ},
		{"max_cqe", a.MaxCQE},
		{"max_mr", a.MaxMR},
		{"max_mw", a.MaxMR},
		{"max_pd", a.MaxPD},
		{"max_qp_rd_atom", a.MaxIRD},
		{"max_qp_init_rd_atom", a.MaxORD},
		{"max_mcast_grp", groups},
		{"max_mcast_qp_attach", perGroup},
		{"max_srq", a.MaxSRQ},
		{"max_srq_wr", a.MaxSRQWR},
		{"max_msg_sz", a.MaxMsg},
		{"max_mtu", a.MaxPathMTU},
		{"qp_types", strings.Join(types, " ")},
		{"local_dma_lkey", a.LocalDMALKey},
		{"mem_mgt_extensions", a.FastRegistration},
		{"mem_windows", a.MemWindows},
		{"atomic_cap", a.Atomics},
		{"masked_atomics", a.MaskedAtomics},
		{"max_imm", fmt.Sprintf("%#x", a.MaxImm)},
		{"send_with_imm", a.SendImm},
		{"private_data_request", a.PrivateData.Request},
		{"private_data_reply", a.PrivateData.Reply},
		{"private_data_reject", a.PrivateData.Reject},
		{"private_data_sidr_request", a.PrivateData.Lookup},
		{"private_data_sidr_reply", a.PrivateData.LookupReply},
	}
}

// transportWords are ibv_devinfo's for the transport, and ours for what is below it.
func transportWords(p rdma.Provider) (transport, link string) {
	if p == rdma.ProviderRoCE {
		return "InfiniBand (0)", "Ethernet; RoCE v2 over UDP"
	}
	return "iWARP (1)", "Ethernet; iWARP over TCP"
}

func showDevice(out io.Writer, a *rdma.DeviceAttr) {
	row := func(name string, v any) { fmt.Fprintf(out, "\t%-32s%v\n", name+":", v) }
	transport, link := transportWords(a.Provider)
	fmt.Fprintf(out, "hca_id:\t%s\n", a.Name)
	row("transport", transport)
	row("provider", a.Provider)
	row("fw_ver", a.Version)
	row("vendor", a.Vendor)
	row("link_layer", link)
	for _, x := range attributes(a) {
		row(x.name, x.value)
	}
	fmt.Fprintln(out)
}

func deviceJSON(a *rdma.DeviceAttr) map[string]any {
	transport, _ := transportWords(a.Provider)
	m := map[string]any{"device": a.Name, "provider": a.Provider.String(), "transport": transport, "version": a.Version, "vendor": a.Vendor}
	for _, x := range attributes(a) {
		m[x.name] = x.value
	}
	return m
}
