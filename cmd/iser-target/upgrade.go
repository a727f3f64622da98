package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"softiser/internal/handover"
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
block devices and in memory and logical volumes stay open, with their locks, reservations
and content, and sessions of iSCSI over TCP and iSER and controllers of NVMe over TCP and RDMA go on (iSER and
RDMA over iWARP): the other ends see a pause. What does not go over is printed; its peers connect again, as after a
restart.

If the new process cannot take over (it does not start, does not know the running version,
or its configuration does not go with what is open: other portals, volumes that are not as
they are served, another admin.state_dir) the running one goes on as if nothing
had happened, and the error says why. SIGUSR2 does the same, and so does
iser-target serve --takeover, with the other options as the running process has them.`,
		Example: `  iser-target upgrade
  iser-target upgrade --binary /opt/softiser/iser-target`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if q.Binary, err = handover.BinaryFromHere(q.Binary); err != nil {
				return err
			}
			return s.askFor(cmd.Context(), startPatience+askPatience, func(ctx context.Context, c *admin.Client) error {
				u, err := c.Upgrade(ctx, q)
				if err != nil {
					return err
				}
				st, err := c.Status(ctx) // it waits for the new process
				for end := time.Now().Add(answerPatience); err != nil && ctx.Err() == nil && time.Now().Before(end); st, err = c.Status(ctx) {
					time.Sleep(10 * time.Millisecond) // the old process had taken the connection before it ended
				}
				if err != nil {
					return fmt.Errorf("process %d has taken over, and does not answer: %w", u.New, err)
				}
				if t := st.TakenOver; t != nil && t.PID == u.Old {
					u.Pause = t.Pause
				}
				return printUpgraded(cmd, u, asJSON)
			})
		},
	}
	s.add(cmd)
	cmd.Flags().StringVar(&q.Binary, "binary", "", "the program to start (default: the file that the running process was started from, as it is now)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printUpgraded(cmd *cobra.Command, u admin.Upgraded, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		u.Carried, u.Closed = append([]string{}, u.Carried...), append([]string{}, u.Closed...) // lists, also where there is nothing
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
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	u, over, err := g.others.Start(ctx, handover.Program{Binary: q.Binary, Args: successorArgs(os.Args[1:]), Told: "the log of the service tells"})
	u.Over = over
	return u, err
}

// successorArgs are the arguments for the process that takes the place of one with these.
func successorArgs(args []string) (all []string) {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--ready-fd":
			i++ // whoever started this process has been told long ago that it is ready
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
			g.app.log.Error("the upgrade has failed; this process goes on", zap.Error(err))
			continue
		}
		u.Over()
	}
}
