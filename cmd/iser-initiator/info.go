package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
)

// report is what info prints.
type report struct {
	URL       string                 `json:"url"`
	LUN       *uint64                `json:"lun,omitempty"`
	LUNs      []uint64               `json:"luns,omitempty"`
	Identity  identity               `json:"identity"`
	Volume    volume                 `json:"volume"`
	Limits    blockio.Limits         `json:"limits"`
	Session   *initiator.SessionInfo `json:"session,omitempty"`   // one path
	Namespace *namespace             `json:"namespace,omitempty"` // NVMe
	Paths     []multipath.Status     `json:"paths,omitempty"`     // several
}

type namespace struct {
	ID         uint32   `json:"nsid"`
	All        []uint32 `json:"namespaces,omitempty"`
	Controller string   `json:"controller"`
	QueueDepth int      `json:"queue_depth"`
}

type identity struct {
	Vendor      string   `json:"vendor"`
	Product     string   `json:"product"`
	Revision    string   `json:"revision"`
	Serial      string   `json:"serial"`
	Designators []string `json:"designators"`
	VPDPages    []int    `json:"vpd_pages"`
}

type volume struct {
	Size          int64 `json:"size_bytes"`
	BlockSize     int   `json:"block_size"`
	PhysBlockSize int   `json:"physical_block_size"`
	ReadOnly      bool  `json:"read_only"`
	WriteCache    bool  `json:"write_cache"`
	Thin          bool  `json:"thin"`
	Discard       bool  `json:"discard"`
	DiscardAlign  int   `json:"discard_granularity"`
	ZeroesOnTrim  bool  `json:"discard_reads_zeroes"`
	Rotational    bool  `json:"rotational"`
}

// infoCommand builds the command that says what a volume is and how it is reached.
func infoCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info URL",
		Short: "Show a volume and how it is reached",
		Long:  "Log in, and show who the volume says it is, its size and abilities, and what\nwas negotiated.",
		Example: `  iser-initiator info iser://127.0.0.1/iqn.2026-11.softiser:demo/0
  iser-initiator info iser://127.0.0.1/iqn.2026-11.softiser:demo/0 --all-portals
  ISER_CHAP_USER=joe ISER_CHAP_SECRET=… iser-initiator info 'iscsi://[fd00::7]/iqn.2026-11.softiser:demo/0' --json`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	opts := connflags.Register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, a []string) error {
		v, err := opts.Open(cmd.Context(), a[0], connflags.Tuning{})
		if err != nil {
			return err
		}
		defer v.Close()
		r := report{URL: connflags.Names(a[0]), Limits: v.Limits()}
		r.Identity = identity{Designators: append([]string{}, v.Names()...), VPDPages: []int{}} // lists, also where there is nothing
		switch l := v.(type) {
		case *initiator.LUN:
			s := l.Sessions()[0]
			info, n := s.Info(), l.Number()
			r.Session, r.LUN = &info, &n
			// A target that does not report its LUNs still has this one.
			r.LUNs, _ = s.ReportLUNs(cmd.Context())
			r.identify(l.Identity())
		case *nvmf.Namespace:
			r.Namespace = &namespace{ID: l.ID(), Controller: l.Association().Describe(), QueueDepth: l.QueueDepth()}
			// A controller that does not list its namespaces still has this one.
			r.Namespace.All, _ = l.Association().Namespaces(cmd.Context())
		case *multipath.Volume:
			r.Paths = l.Paths()
		}
		r.measure(v.Info())
		if asJSON {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(r)
		}
		r.print(cmd.OutOrStdout())
		return nil
	}
	return cmd
}

func (r *report) identify(id initiator.Identity) {
	i := &r.Identity
	i.Vendor, i.Product, i.Revision, i.Serial = id.Vendor, id.Product, id.Revision, id.Serial
	i.Designators = append(i.Designators[:0], id.Designators...)
	for _, p := range id.Pages {
		r.Identity.VPDPages = append(r.Identity.VPDPages, int(p))
	}
}

func (r *report) measure(v blockdev.Info) {
	r.Volume = volume{
		Size: v.Size, BlockSize: v.BlockSize, PhysBlockSize: v.PhysBlockSize, ReadOnly: v.ReadOnly, WriteCache: v.WriteCache,
		Thin: v.Thin, Discard: v.Discard, DiscardAlign: v.DiscardAlign, ZeroesOnTrim: v.ZeroesOnTrim, Rotational: v.Rotational,
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// lines prints names and values in columns. Much of it is what the target says.
type lines struct{ w io.Writer }

func (l lines) line(name, format string, args ...any) {
	fmt.Fprintf(l.w, "%-22s %s\n", name+":", iscsi.Printable(fmt.Sprintf(format, args...)))
}

// print writes what is known of a volume, as text for people.
func (r *report) print(w io.Writer) {
	l := lines{w}
	l.line("volume", "%s", r.URL)
	r.Identity.print(l)
	r.Volume.print(l)
	l.line("longest command", "%s", humanize.IBytes(uint64(r.Limits.MaxTransfer)))
	if r.Limits.MaxCompareAndWrite > 0 {
		l.line("compare and write", "up to %s", humanize.IBytes(uint64(r.Limits.MaxCompareAndWrite)))
	}
	if len(r.LUNs) > 0 {
		l.line("LUNs of the target", "%s", strings.Trim(fmt.Sprint(r.LUNs), "[]"))
	}
	for _, p := range r.Paths {
		state := p.State
		if p.Active {
			state += ", in use"
		}
		if p.Reason != "" {
			state += ": " + p.Reason
		}
		l.line("path", "%s %s", p.URL, state)
	}
	if n := r.Namespace; n != nil {
		l.line("namespaces", "%s", strings.Trim(fmt.Sprint(n.All), "[]"))
		l.line("controller", "%s", n.Controller)
		l.line("queue depth", "%d", n.QueueDepth)
	}
	if r.Session != nil {
		printSession(l, r.Session)
	}
}

func (id *identity) print(l lines) {
	if id.Vendor != "" {
		l.line("vendor, product", "%s %s %s", id.Vendor, id.Product, id.Revision)
		l.line("serial", "%s", id.Serial)
	}
	for _, d := range id.Designators {
		l.line("identifier", "%s", d)
	}
	var pages []string
	for _, p := range id.VPDPages {
		pages = append(pages, fmt.Sprintf("%02x", p))
	}
	if len(pages) > 0 {
		l.line("VPD pages", "%s", strings.Join(pages, " "))
	}
}

func (v *volume) print(l lines) {
	l.line("size", "%s (%d bytes)", humanize.IBytes(uint64(v.Size)), v.Size)
	l.line("block size", "%d logical, %d physical", v.BlockSize, v.PhysBlockSize)
	l.line("read-only", "%s", yesNo(v.ReadOnly))
	l.line("write cache", "%s", yesNo(v.WriteCache))
	discard := yesNo(v.Discard)
	if v.Discard {
		if v.DiscardAlign > 0 {
			discard += fmt.Sprintf(", granularity %s", humanize.IBytes(uint64(v.DiscardAlign)))
		}
		if v.ZeroesOnTrim {
			discard += ", reads zeroes afterwards"
		}
	}
	l.line("thin", "%s", yesNo(v.Thin))
	l.line("discard", "%s", discard)
}

func printSession(l lines, s *initiator.SessionInfo) {
	l.line("transport", "%s", s.Transport)
	l.line("portal", "%s, portal group %d", s.Portal, s.PortalGroup)
	l.line("initiator", "%s, ISID %s, TSIH %d", s.InitiatorName, s.ISID, s.TSIH)
	if s.AuthUser != "" {
		l.line("authenticated as", "%s", s.AuthUser)
	}
	l.line("window, queue depth", "%d, %d", s.CommandWindow, s.QueueDepth)
	l.line("immediate data", "%s", yesNo(s.ImmediateData))
	l.line("InitialR2T", "%s", yesNo(s.InitialR2T))
	l.line("burst lengths", "first %d, max %d", s.FirstBurstLength, s.MaxBurstLength)
	l.line("data segments", "receive %d, send %d", s.MaxRecvDataLength, s.MaxXmitDataLength)
	l.line("digests", "header %s, data %s", s.HeaderDigest, s.DataDigest)
	l.line("RDMA extensions", "%s", yesNo(s.RDMAExtensions))
}
