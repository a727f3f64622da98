package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"softiser/target/admin"
)

// upgradeCommand builds the command that replaces the running process.
func upgradeCommand() *cobra.Command {
	var s socketFlag
	var q admin.UpgradeRequest
	var asJSON bool
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Replace the running process by a new one, which goes on with what is open",
		Long: `Starts the program anew, with the arguments of the running process, and has it take over: the
portals, the admin socket and the metrics address go on listening, volumes in files, on
block devices and in memory stay open, with their locks, reservations and content, and
sessions of iSCSI over TCP and iSER and controllers of NVMe over TCP and RDMA go on (iSER and
RDMA over iWARP): the other ends see a pause. What does not go over is printed; its peers connect again, as after a
restart.

If the new process cannot take over (it does not start, does not know the running version,
or its configuration does not go with what is open) the running one goes on as if nothing
had happened, and the error says why. SIGUSR2 does the same, and so does
iser-target serve --takeover, with the other options as the running process has them.`,
		Example: `  iser-target upgrade
  iser-target upgrade --binary /opt/softiser/iser-target`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.askFor(cmd.Context(), startPatience+askPatience, func(ctx context.Context, c *admin.Client) error {
				u, err := c.Upgrade(ctx, q)
				if err != nil {
					return err
				}
				if _, err := c.Status(ctx); err != nil { // it waits for the new process
					return fmt.Errorf("process %d has taken over, and does not answer: %w", u.New, err)
				}
				return printUpgraded(cmd, u, asJSON)
			})
		},
	}
	s.add(cmd)
	cmd.Flags().StringVar(&q.Binary, "binary", "", "the program to start (default: that of the running process, as it is now under its name)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printUpgraded(cmd *cobra.Command, u admin.Upgraded, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(u)
	}
	fmt.Fprintf(out, "process %d has taken over from %d; the pause was %v\n", u.New, u.Old, u.Pause.Round(100*time.Microsecond))
	for _, l := range []struct {
		title string
		lines []string
	}{{"carried:", u.Carried}, {"closed:", u.Closed}} {
		if len(l.lines) == 0 {
			continue
		}
		fmt.Fprintln(out, l.title)
		for _, line := range l.lines {
			fmt.Fprintln(out, "  "+line)
		}
	}
	return nil
}

// upgrade starts a process that takes this one's place, and waits for what comes of it. When
// there is no error this process ends after Upgraded.Over.
func (g *giving) upgrade(ctx context.Context, q admin.UpgradeRequest) (admin.Upgraded, error) {
	if g.ls.admin == nil {
		return admin.Upgraded{}, errors.New("there is no admin socket, by which the new process could ask for what is open (admin.socket, --socket)")
	}
	binary := q.Binary
	if binary == "" {
		var err error
		if binary, err = os.Executable(); err != nil {
			return admin.Upgraded{}, err
		}
	}
	select {
	case g.upgrading <- struct{}{}:
		defer func() { <-g.upgrading }()
	default:
		return admin.Upgraded{}, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	c := exec.Command(binary, successorArgs(os.Args[1:])...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	// The watchdog of the service manager is that of the main process, which the new one becomes.
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	if err := c.Start(); err != nil {
		return admin.Upgraded{}, fmt.Errorf("starting the new process: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	return g.outcome(ctx, c.Process, ended)
}

// outcome waits for what comes of a new process.
func (g *giving) outcome(ctx context.Context, p *os.Process, ended <-chan error) (admin.Upgraded, error) {
	var why error
	for {
		select {
		case r := <-g.result:
			if r.err == nil {
				return r.up, nil
			}
			why = r.err // the new process ends
		case err := <-ended:
			if why != nil {
				return admin.Upgraded{}, fmt.Errorf("this process goes on: %w", why)
			}
			return admin.Upgraded{}, fmt.Errorf("this process goes on; the new one has ended before it could take over (%w); the log of the service tells why", orNil(err))
		case <-ctx.Done():
			select {
			case g.turn <- struct{}{}: // nothing is the new one's, and nothing will be
			case r := <-g.result:
				if r.err == nil {
					return r.up, nil
				}
				continue
			}
			_ = p.Kill()
			<-ended
			<-g.turn
			return admin.Upgraded{}, fmt.Errorf("this process goes on; the new one has not taken over in time: %w", ctx.Err())
		}
	}
}

// orNil names the end of a process without an error.
func orNil(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// successorArgs are the arguments for the process that takes the place of one with these.
func successorArgs(args []string) (all []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--ready-fd":
			i++ // who had started this process has been told
		case strings.HasPrefix(a, "--ready-fd="), a == "--"+takeoverName, strings.HasPrefix(a, "--"+takeoverName+"="):
		default:
			all = append(all, a)
		}
	}
	at := slices.Index(all, serveName) + 1
	return slices.Insert(all, at, "--"+takeoverName)
}

const takeoverName = "takeover"

// upgrades delivers the signal that asks for an upgrade.
func upgrades() (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	return c, func() { signal.Stop(c) }
}

// upgradeOn upgrades whenever a signal says so, until ctx is done.
func (g *giving) upgradeOn(ctx context.Context, asked <-chan os.Signal) {
	for {
		select {
		case <-asked:
		case <-ctx.Done():
			return
		}
		u, err := g.upgrade(ctx, admin.UpgradeRequest{})
		if err != nil {
			g.app.log.Error("upgrade", zap.Error(err))
			continue
		}
		u.Over()
	}
}
