package rows

import (
	"context"
	"fmt"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/result"
)

// tcpRows: plain iSCSI with libiscsi's client against tgt. Beside reads and writes of 4 KiB are
// the calls that libiscsi makes for them, in C.
func tcpRows() []Row {
	row := func(id, title string, l peers.Load, metric string, want float64, bound string) Row {
		return Row{
			Row: result.Row{
				ID: id, Title: title, Metrics: []string{metric, result.CPUServer, result.CPUClient},
				Ratios: []result.Ratio{{Name: title + ": over tgt", Num: "iser-target", Den: tgt, Metric: metric, Op: ">=", Want: want, Bound: bound}},
			},
			Contenders: []Contender{
				{Name: "iser-target", Needs: []string{"iscsi-perf"}, Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
					s := st.started("ours")
					return st.IscsiPerf(ctx, s, peers.TCP(s.URL), l)
				}},
				{Name: tgt, Needs: []string{"tgtd", "tgtadm", "iscsi-perf"}, Prepare: startTgt, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
					s := st.started("tgt")
					return st.IscsiPerf(ctx, s, s.URL, l)
				}},
			},
		}
	}
	perf := row("iscsi-4k", "plain iSCSI, iscsi-perf, 4 KiB random reads QD32", peers.Load{RW: "randread", BS: "4k", Depth: 32}, result.IOPS, 4, boundThree)
	perf.Contenders = append(perf.Contenders, inC(boundThree, "sends", served, "read", millis))
	return []Row{
		qemuRow("iscsi-qemu-read-4k", peers.Load{RW: "read", BS: "4k", Depth: 32}),
		qemuRow("iscsi-qemu-write-4k", peers.Load{RW: "write", BS: "4k", Depth: 32}),
		perf,
		row("iscsi-1m", "plain iSCSI, iscsi-perf, 1 MiB reads QD32", peers.Load{RW: "read", BS: "1m", Depth: 32}, result.BW, 1.05, ""),
	}
}

// qemuRow: qemu's block layer with its iSCSI driver, which is libiscsi again, under other buffers and
// another event loop. It goes through the volume in steps that no cache line or page is near.
func qemuRow(id string, l peers.Load) Row {
	title := fmt.Sprintf("plain iSCSI, qemu-img bench, 4 KiB strided %ss QD32", l.RW)
	over := result.Ratio{Name: title + ": over tgt", Num: "iser-target", Den: tgt, Metric: result.IOPS, Op: ">=", Want: 2}
	var bounds []Contender
	if l.RW == "write" { // header and data are sent apart
		over.Bound = boundTwo
		bounds = []Contender{inC(boundTwo, "sends", served, "two", millis), inC(result.BoundPrefix+"one send", "sends", served, "one", millis)}
	}
	needs := []string{"qemu-img", "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so"}
	return Row{
		Row: result.Row{
			ID: id, Title: title, Metrics: []string{result.IOPS, result.CPUServer, result.CPUClient},
			Ratios: []result.Ratio{over},
		},
		Reps: 3,
		Contenders: append([]Contender{
			{Name: "iser-target", Needs: needs, Prepare: fillTarget, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s := st.started("ours")
				return st.QemuBench(ctx, s, peers.TCP(s.URL), l)
			}},
			{Name: tgt, Needs: append([]string{"tgtd", "tgtadm"}, needs...), Prepare: startTgt, Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
				s := st.started("tgt")
				return st.QemuBench(ctx, s, s.URL, l)
			}},
		}, bounds...),
	}
}

// startTgt starts tgt and fills its volume through our own initiator.
func startTgt(ctx context.Context, st *Stage) error {
	if st.started("tgt") != nil {
		return nil
	}
	s, err := st.server("tgt", peers.Tgt)
	if err != nil {
		return err
	}
	return st.Fill(ctx, s, s.URL)
}
