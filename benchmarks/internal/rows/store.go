package rows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"softiser/benchmarks/internal/peers"
	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Contenders over a store.
const (
	iserFile    = "iSER"
	iserThrough = "iSER, write-through"
	iserFUA     = "iSER, FUA"
	fioPsync    = "fio psync"
	fioUring    = "fio io_uring"
)

// storeRows: volumes that are not in memory, beside fio's own engines on the same file or
// device without a target in between. Each measurement of ours has a target of its own, which
// knows of no page what there is.
func storeRows() (rows []Row) {
	for _, kind := range []peers.StoreKind{peers.Ext4, peers.XFS, peers.Raw} {
		rows = append(rows, coldRow(kind), syncRow(kind))
		if kind != peers.Raw {
			rows = append(rows, firstWriteRow(kind))
		}
	}
	return rows
}

// storeRow is a row whose contenders take turns on one store. The scheduler places both sides,
// as it does fio, which is one process.
func storeRow(kind peers.StoreKind, id, title string, more time.Duration) Row {
	return Row{
		Row: result.Row{
			ID: fmt.Sprintf("%s-%s", id, kind), Title: fmt.Sprintf("%s, %s", title, kind),
			Metrics: []string{result.IOPS, result.P50, result.P99, result.P999, result.CPUBoth},
		},
		Place: proc.Free, Reps: 3, More: more,
	}
}

// onStore is a contender that finds the store as before leaves it.
func onStore(name string, kind peers.StoreKind, before func(*peers.Store) error, needs []string, measure func(context.Context, *Stage) (result.Values, error)) Contender {
	return Contender{
		Name: name, Needs: append(needs, kind.Needs()...),
		Prepare: func(_ context.Context, st *Stage) error { return st.onStore(kind) },
		Measure: func(ctx context.Context, st *Stage) (result.Values, error) {
			if err := before(st.store); err != nil {
				return nil, err
			}
			return measure(ctx, st)
		},
	}
}

// oursOnStore is our target with that store, options are its volume's.
func oursOnStore(name string, kind peers.StoreKind, before func(*peers.Store) error, options string, l peers.Load) Contender {
	return onStore(name, kind, before, nil, func(ctx context.Context, st *Stage) (result.Values, error) {
		s, err := st.newTarget(peers.TargetConfig{Volume: st.store.Volume(options)})
		if s != nil {
			defer s.Close()
		}
		if err != nil {
			return nil, err
		}
		return st.Bench(ctx, s, s.URL, l)
	})
}

// fioOnStore is one of fio's engines; psync has one operation under way.
func fioOnStore(name, engine string, kind peers.StoreKind, before func(*peers.Store) error, l peers.Load, more ...string) Contender {
	if engine == "psync" {
		l.Depth = 1
	}
	return onStore(name, kind, before, []string{"fio"}, func(ctx context.Context, st *Stage) (result.Values, error) {
		return st.FioStore(ctx, st.store, engine, l, more...)
	})
}

// coldRow: nothing is in the page cache, so the disk is the limit. Nobody reads a page twice.
func coldRow(kind peers.StoreKind) Row {
	l := peers.Load{RW: "randread", BS: "4k", Depth: 32, Once: peers.StoreSize}
	cold := (*peers.Store).Cold
	r := storeRow(kind, "cold-randread-4k", "4 KiB randread QD32, cold page cache", time.Second)
	r.Contenders = []Contender{
		oursOnStore(iserFile, kind, cold, "", l),
		fioOnStore(fioUring, "io_uring", kind, cold, l),
		fioOnStore(fioPsync, "psync", kind, cold, l),
		threadsOnStore(boundAhead, kind, "ahead", 1),
	}
	r.Ratios = []result.Ratio{
		{Name: r.Title + ": IOPS over fio's io_uring", Num: iserFile, Den: fioUring, Metric: result.IOPS, Op: ">=", Want: 0.9, Bound: boundAhead},
		{Name: r.Title + ": IOPS over fio's psync, one at a time", Num: iserFile, Den: fioPsync, Metric: result.IOPS},
	}
	return r
}

// syncRow: every write is on the disk before it is answered.
func syncRow(kind peers.StoreKind) Row {
	l := peers.Load{RW: "randwrite", BS: "4k", Depth: 32}
	clean := (*peers.Store).Cold
	fua := l
	fua.Extra = []string{"--fua=1"}
	r := storeRow(kind, "durable-randwrite-4k", "4 KiB durable randwrite QD32", time.Second)
	r.Contenders = []Contender{
		oursOnStore(iserThrough, kind, clean, ", write_through: true", l),
		oursOnStore(iserFUA, kind, clean, "", fua),
		fioOnStore(fioUring, "io_uring", kind, clean, l, "--sync=dsync"),
		fioOnStore(fioPsync, "psync", kind, clean, l, "--sync=dsync"),
	}
	for _, c := range []string{iserThrough, iserFUA} {
		r.Ratios = append(r.Ratios,
			result.Ratio{Name: r.Title + ", " + c + ": IOPS over fio's io_uring with O_DSYNC", Num: c, Den: fioUring, Metric: result.IOPS, Op: ">=", Want: 0.9})
	}
	if kind == peers.Raw {
		r.Contenders = append(r.Contenders, threadsOnStore(boundThreads, kind, "durable", 32))
		for i := range r.Ratios {
			r.Ratios[i].Bound = boundThreads
		}
	}
	return r
}

// firstWriteRow: a sparse file is written to for the first time; what the disk takes is
// not awaited.
func firstWriteRow(kind peers.StoreKind) Row {
	l := peers.Load{RW: "randwrite", BS: "4k", Depth: 32, Bytes: peers.StoreSize / 2}
	sparse := (*peers.Store).Sparse
	r := storeRow(kind, "first-randwrite-4k", "4 KiB randwrite QD32, first writes of a sparse file", 2*time.Second)
	r.Contenders = []Contender{
		oursOnStore(iserFile, kind, sparse, "", l),
		fioOnStore(fioPsync, "psync", kind, sparse, l),
		fioOnStore(fioUring, "io_uring", kind, sparse, l),
		firstInC(boundWorker, kind, "worker", l), firstInC(boundInline, kind, "inline", l),
	}
	for _, c := range []string{fioPsync, fioUring} {
		r.Ratios = append(r.Ratios, result.Ratio{Name: r.Title + ": IOPS over " + c, Num: iserFile, Den: c, Metric: result.IOPS, Op: ">=", Want: 0.8, Bound: boundWorker})
	}
	return r
}

// threadsOnStore are cold reads or durable writes that are asked for over a connection and made by so many threads.
func threadsOnStore(name string, kind peers.StoreKind, how string, threads int) Contender {
	return storeInC(name, kind, (*peers.Store).Cold, "disk", func(ctx context.Context, st *Stage) (result.Values, error) {
		return st.ProgramRun(ctx, st.started("disk"), how, st.store.Path, fmt.Sprint(threads), st.Millis())
	})
}

// firstInC are first writes that come over a connection and are made as they come, or by a worker.
func firstInC(name string, kind peers.StoreKind, how string, l peers.Load) Contender {
	return storeInC(name, kind, (*peers.Store).Sparse, "first", func(ctx context.Context, st *Stage) (result.Values, error) {
		return st.ProgramRun(ctx, st.started("first"), how, st.store.Path, fmt.Sprint(l.Bytes))
	})
}

// storeInC is a program in C whose serving half has the store, and is started once a row.
func storeInC(name string, kind peers.StoreKind, before func(*peers.Store) error, program string, measure func(context.Context, *Stage) (result.Values, error)) Contender {
	c := onStore(name, kind, before, []string{"cc"}, measure)
	made := c.Prepare
	c.Prepare = func(ctx context.Context, st *Stage) error {
		if err := made(ctx, st); err != nil {
			return err
		}
		if st.store == nil {
			return errors.New("the row has ended")
		}
		_, err := st.server(program, peers.Program(program, st.store.Path))
		return err
	}
	return c
}
