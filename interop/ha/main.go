// Command ha runs iser-target under a real Corosync and Pacemaker with real fencing, on one
// machine, and takes nodes from it while initiators write.
//
//	go run ./interop/ha                          every event on every configuration (make ha)
//	go run ./interop/ha -short                   one of three nodes, two events (make ha-short; CI)
//	go run ./interop/ha -for 1h -seed 7          events at random, as long as one likes
//	go run ./interop/ha -run 'arbiter/cable'     only what matches
//	go run ./interop/ha -write docs/ha/EVENTS.md the table of what was seen
//	go run ./interop/ha -files docs/ha           the files that the nodes run, and nothing else
//
// Each node is a process tree with namespaces of its own, whose process 1 is its power
// supply; a bridge is the network, and where the initiators are. Everything lives in
// namespaces that end with this program, however it ends.
//
// During each event there is a verified load over every wire with a ledger of what was
// acknowledged, a journal of writes each of which begins when the one before it is flushed,
// and a host that was fenced by PREEMPT AND ABORT. What decides is the data: nothing that
// was acknowledged is lost, no write is there without those flushed before it, the fenced
// host is refused. Pauses are compared with their budgets and reported, no more.
//
// The exit status is 1 when a promise was broken and 2 when the run could not be made. A
// machine that has no means for it (root, packages) is told why, with status 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience ends what does not come about, on the slowest machine; it never decides whether
// something that does come about passes.
const patience = 3 * time.Minute

// insideEnv is the folder of the run, for the program in its namespaces.
const insideEnv = "HA_RUN_DIR"

type options struct {
	short  bool
	length time.Duration
	seed   uint64
	only   *regexp.Regexp
	bin    string
	write  string
	files  string
	logs   bool
	open   bool // the array refuses nobody
}

func parse() (o options, err error) {
	flag.BoolVar(&o.short, "short", false, "three nodes, a killed target and a power cut")
	flag.DurationVar(&o.length, "for", 0, "events at random for so long, on the configurations in turn")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of everything random, as printed by an earlier run")
	only := flag.String("run", "", "only what matches: CONFIGURATION/EVENT")
	flag.StringVar(&o.bin, "bin", "bin", "folder of iser-target and iser-initiator")
	flag.StringVar(&o.write, "write", "", "file that the table is written to")
	flag.StringVar(&o.files, "files", "", "folder that the files which the nodes run are written to; nothing is run")
	flag.BoolVar(&o.logs, "v", false, "print what the cluster's log says of each event, with the seconds since then")
	flag.BoolVar(&o.open, "never-refuse", false, "the shared disk refuses nobody: a check of the check, disk/pause must fail")
	flag.Parse()
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return o, err
	}
	for _, name := range []string{"iser-target", "iser-initiator"} {
		if _, err := os.Stat(filepath.Join(o.bin, name)); err != nil {
			return o, fmt.Errorf("%w (run make build first)", err)
		}
	}
	return o, nil
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "fence" {
		os.Exit(fence(os.Args[2:], os.Stdin, os.Stdout))
	}
	o, err := parse()
	if err == nil && o.files != "" {
		if err = writeDocuments(o.files); err == nil {
			return
		}
	}
	if err == nil {
		if dir := os.Getenv(insideEnv); dir != "" {
			os.Exit(inside(dir, o))
		}
		if why := noMeans(); why != "" {
			fmt.Println("skip ha:", why)
			return
		}
		var status int
		if status, err = outside(); err == nil {
			os.Exit(status)
		}
	}
	fmt.Fprintln(os.Stderr, "ha:", err)
	os.Exit(2)
}

// noMeans returns what this machine lacks, or nothing.
func noMeans() string {
	if os.Getuid() != 0 {
		return "not root"
	}
	var missing []string
	for _, p := range []string{"corosync", "pacemakerd", "crm_resource", "crm_mon", "corosync-qnetd", "corosync-qdevice", "ip", "nsenter", "/usr/lib/ocf/resource.d/heartbeat/IPaddr2"} {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	if missing != nil {
		return "missing: " + strings.Join(missing, ", ") + " (make tools)"
	}
	return ""
}

// outside runs this program again in namespaces of its own, as process 1: when that ends,
// the kernel ends all that it has started, with its mounts and links.
func outside() (int, error) {
	dir, err := os.MkdirTemp("", "softiser-ha-")
	if err != nil {
		return 0, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // pacemaker's own user reads there
		return 0, err
	}
	self := filepath.Join(dir, "ha")
	if err := copyFile(self, "/proc/self/exe"); err != nil {
		return 0, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		os.RemoveAll(dir)
		fmt.Println("skip ha: no namespaces:", err)
		return 0, nil
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case <-stop:
			cmd.Process.Signal(syscall.SIGTERM)
			time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		case err := <-done:
			if status := cmd.ProcessState.ExitCode(); status != 1 {
				os.RemoveAll(dir)
				if status < 0 {
					return 0, fmt.Errorf("the run was ended: %w", err)
				}
				return status, nil
			}
			fmt.Println("ha: logs are in", dir)
			return 1, nil
		}
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// inside is the run proper. It returns the exit status.
func inside(dir string, o options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Printf("ha: seed %d\n", o.seed)
	seen, err := runAll(ctx, dir, o)
	switch {
	case ctx.Err() != nil:
		fmt.Println("ha: interrupted")
		return 2
	case errors.Is(err, errNoMeans):
		fmt.Println("skip ha:", err)
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "ha:", err)
		if errors.Is(err, errUnmade) {
			return 2
		}
		return 1
	}
	if o.write != "" {
		if err := os.WriteFile(o.write, table(seen), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "ha:", err)
			return 2
		}
	}
	return 0
}
