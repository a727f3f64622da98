// Command soak mixes what goes wrong in practice and holds the target to what it has
// promised: nothing that was acknowledged is lost, and nobody is shut out.
//
//	go run ./interop/soak             half an hour (make soak)
//	go run ./interop/soak -short      each stage once (make soak-short; CI)
//	go run ./interop/soak -run power  only stages whose name contains power
//
// The stages take turns until the time is over:
//
//	kills    kill -9 of the target, of initiators, and connections cut at any byte, under
//	         verified load over iSER, iSCSI, NVMe/TCP and NVMe/RDMA; over RoCE the target
//	         is frozen until its peers give up; every acknowledged write is there
//	disks    durable writes to a loop device whose file system runs full; every one that
//	         was acknowledged is in the file below it
//	power    the target on a file that a recorder serves through the kernel (FUSE): what
//	         a power cut at any moment may leave holds every flushed write
//	hostile  peers that break the rules, before and after their login; honest logins and
//	         verified I/O over all wires, RoCE too, beside them succeed, and afterwards nothing is
//	         left of them
//
// Whether a run passes never depends on how fast something was. A stage that the machine
// has no means for says so and is left out. The exit status is 1 when a promise was
// broken and 2 when the run could not be made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// errNoMeans says that this machine cannot run a stage; it wraps the reason.
var errNoMeans = errors.New("not on this machine")

// run is what stages work with.
type run struct {
	bin          string // folder of the programs
	dir          string // of this turn
	rnd          *rand.Rand
	rounds       int // how much a stage does in one turn
	dropFlushes  bool
	stateSamples int // crash states looked at for each power cut
}

type stage struct {
	name string
	run  func(ctx context.Context, r *run) (seen string, err error)
}

var stages = []stage{
	{"kills", kills},
	{"disks", fullDisks},
	{"power", powerCuts},
	{"hostile", hostilePeers},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(soak(ctx))
}

// soak runs the stages in turn until the time is over. It returns the exit code: 1 for a
// promise that was not kept, 2 for a run that could not be finished.
func soak(ctx context.Context) int {
	short := flag.Bool("short", false, "each stage once")
	length := flag.Duration("time", 30*time.Minute, "how long stages take turns")
	only := flag.String("run", "", "only stages whose name contains this")
	bin := flag.String("bin", "bin", "folder of iser-target and iser-initiator")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of everything random, as printed by an earlier run")
	drop := flag.Bool("drop-flushes", false, "the recorder forgets flushes: a check of the check, the run must fail")
	flag.Parse()
	programs, err := filepath.Abs(*bin)
	if err == nil {
		_, err = os.Stat(filepath.Join(programs, "iser-target"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err, "(run make build first)")
		return 2
	}
	out, err := os.MkdirTemp("", "softiser-soak-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return 2
	}
	fmt.Printf("soak: seed %d\n", *seed)
	began := time.Now()
	for turn := 1; ; turn++ {
		for _, s := range stages {
			if !strings.Contains(s.name, *only) {
				continue
			}
			r := &run{bin: programs, dir: filepath.Join(out, fmt.Sprintf("%s.%d", s.name, turn)), rnd: rand.New(rand.NewPCG(*seed, uint64(turn))),
				rounds: 10, stateSamples: 10, dropFlushes: *drop}
			if *short {
				r.rounds, r.stateSamples = 4, 3
			}
			if err := os.Mkdir(r.dir, 0o755); err != nil {
				fmt.Fprintln(os.Stderr, "soak:", err)
				return 2
			}
			at := time.Now()
			seen, err := s.run(ctx, r)
			took := time.Since(at).Seconds()
			switch {
			case ctx.Err() != nil:
				fmt.Println("soak: interrupted")
				return 2
			case errors.Is(err, errNoMeans):
				fmt.Printf("skip %-8s %v\n", s.name, err)
			case err != nil:
				fmt.Printf("FAIL %-8s %5.1fs %v\nsoak: logs are in %s; -seed %d repeats what was random\n", s.name, took, err, r.dir, *seed)
				return 1
			default:
				fmt.Printf("ok   %-8s %5.1fs %s\n", s.name, took, seen)
			}
			os.RemoveAll(r.dir)
		}
		if *short || time.Since(began) > *length {
			os.Remove(out)
			fmt.Printf("soak: %d turns in %.0fs, every promise was kept\n", turn, time.Since(began).Seconds())
			return 0
		}
	}
}
