package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"softiser/blockdev"
	"softiser/config"
	"softiser/internal/terminal"
	"softiser/target/registry"
)

// checkCommand builds the command that says what is wrong with a configuration, and with
// the volumes that it names.
func checkCommand() *cobra.Command {
	var file string
	var sock socketFlag
	var asJSON, noOpen bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration and print it with every default filled in",
		Long: `Reads a configuration, checks it as serve would, and prints it with every default
filled in. Volumes are opened as serve would open them, and closed again; nothing is
created or written. Volumes that a running target of this configuration has open, as its
admin socket tells, are not opened. Secrets are not printed.`,
		Example: `  iser-target check --config /etc/softiser/iser-target.yaml
  iser-target check -c iser-target.yaml --json | jq .targets
  envsubst < template.yaml | iser-target check -c -`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadOrRead(cmd.Context(), file)
			if err != nil {
				return exit(exitUsage, err)
			}
			defaultPortal(cfg)
			if asJSON {
				b, err := json.MarshalIndent(cfg, "", "  ")
				if err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), string(b))
			} else {
				fmt.Fprint(cmd.OutOrStdout(), cfg.YAML())
			}
			if err := registry.Check(cfg); err != nil {
				return exit(exitUsage, err)
			}
			for _, w := range cfg.Warnings() {
				fmt.Fprintln(cmd.ErrOrStderr(), "iser-target: warning:", w)
			}
			start, save := registry.ProbeStateDir(cfg)
			if start != nil {
				return exit(exitUsage, start)
			}
			if save != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "iser-target: warning:", save, "(serve starts, and what is to survive a restart cannot be kept)")
			}
			if noOpen {
				return nil
			}
			served, unasked := servedBy(cmd.Context(), cfg, &sock)
			if err := registry.StateDirInUse(cfg); err != nil && unasked != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "iser-target: warning: %v (%s)\n", err, unasked)
			}
			return checkVolumes(cmd.ErrOrStderr(), cfg, served, unasked)
		},
	}
	sock.add(cmd)
	cmd.PersistentFlags().Lookup("socket").Usage = "admin socket (default $SOFTISER_ADMIN_SOCKET, then admin.socket of the configuration)"
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file (YAML), - for standard input")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON instead of YAML")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "do not open the volumes")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag is defined three lines above
	}
	return cmd
}

// loadOrRead loads a configuration file, or reads standard input, which is called "-".
func loadOrRead(ctx context.Context, file string) (*config.Config, error) {
	if file != "-" {
		return config.Load(file)
	}
	in, err := terminal.NewReader(ctx, os.Stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return config.Read(in, "standard input")
}

// servedBy returns the volumes that the running target of a configuration has open,
// by name. Without an answer unasked says what to make of a volume that is in use.
func servedBy(ctx context.Context, cfg *config.Config, sock *socketFlag) (served map[string]bool, unasked string) {
	if sock.path == "" {
		sock.path = cfg.Admin.Socket
	}
	served = map[string]bool{}
	if sock.path == "" {
		return served, "if that is the target of this configuration, all is well: --socket names its admin socket, which the file does not"
	}
	c, err := sock.open()
	if err != nil {
		return served, "" // loading the configuration has reported it
	}
	defer c.Close()
	st, err := c.Status(ctx)
	if err != nil {
		return served, "no target answers at " + sock.path // so what is in use is so by something else
	}
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			served[l.Volume] = served[l.Volume] || l.Error == ""
		}
	}
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			served[n.Volume] = served[n.Volume] || n.Error == ""
		}
	}
	return served, ""
}

// checkVolumes tells what serve would find wrong with the volumes; inUse is added to
// what is in use, unless "".
func checkVolumes(w io.Writer, cfg *config.Config, served map[string]bool, inUse string) error {
	named := namedVolumes(cfg)
	var before []config.Volume
	bad := 0
	for _, v := range cfg.Volumes {
		if cfg.HA.GroupOf(v.Name) != nil {
			continue // another node may have it; whether it can be opened is known when it is promoted
		}
		remarks, err := registry.Probe(v, func(config.Volume) bool {
			return slices.ContainsFunc(cfg.Volumes, func(w config.Volume) bool {
				return served[w.Name] && (w.Name == v.Name || w.VG != "" && w.VG == v.VG)
			})
		})
		for _, r := range remarks {
			fmt.Fprintf(w, "iser-target: volume %s: %s\n", v.Name, r)
		}
		if err == nil && named[v.Name] {
			err = alone(v, before)
			before = append(before, v)
		}
		if err != nil && !named[v.Name] {
			fmt.Fprintf(w, "iser-target: volume %s: no LUN and no namespace names it, so that serve leaves it alone; it could not be opened: %v\n", v.Name, err)
			continue
		}
		if err != nil {
			bad++
			if errors.Is(err, blockdev.ErrInUse) && inUse != "" {
				err = fmt.Errorf("%w (%s)", err, inUse)
			}
			fmt.Fprintln(w, "iser-target:", err)
		}
	}
	switch {
	case bad == 0:
		return nil
	case bad == len(named):
		return exit(exitDegraded, errors.New("no volume can be opened; serve would not start"))
	}
	return exit(exitDegraded, fmt.Errorf("%d of %d volumes cannot be opened; serve would start without them", bad, len(named)))
}

// alone says with which of others a volume has a file in common that it does not share with it: volumes of one group
// do, and files that are only read.
func alone(v config.Volume, others []config.Volume) error {
	for _, o := range others {
		if shared := o.VG == v.VG && (v.VG != "" || v.ReadOnly && o.ReadOnly); !shared && registry.ShareStore(o, v) {
			return fmt.Errorf("volume %s: it has a file in common with volume %s, and a file is served as one volume: name one of the two only", v.Name, o.Name)
		}
	}
	return nil
}

// namedVolumes are those that serve opens.
func namedVolumes(cfg *config.Config) map[string]bool {
	named := map[string]bool{}
	for _, t := range cfg.Targets {
		for _, l := range t.LUNs {
			named[l.Volume] = true
		}
	}
	for _, s := range cfg.Subsystems {
		for _, n := range s.Namespaces {
			named[n.Volume] = true
		}
	}
	return named
}
