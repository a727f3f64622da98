package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target"
)

func checkCommand() *cobra.Command {
	var file string
	var asJSON, noOpen bool
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check a configuration and print it with every default filled in",
		Long: `Reads a configuration, checks it as serve would, and prints it with every default
filled in. Existing volumes are opened and closed again, read-only; nothing is
created. Secrets are not printed.`,
		Example: `  iser-target check --config /etc/softiser/iser-target.yaml
  iser-target check -c iser-target.yaml --json | jq .targets`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(file)
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
			if err := checkObjects(cfg); err != nil {
				return exit(exitUsage, err)
			}
			if noOpen {
				return nil
			}
			bad := 0
			for _, v := range cfg.Volumes {
				if err := checkVolume(v); err != nil {
					bad++
					fmt.Fprintln(cmd.ErrOrStderr(), "iser-target:", err)
				}
			}
			if bad > 0 {
				return exit(exitDegraded, fmt.Errorf("%d of %d volumes cannot be opened; serve would start without them", bad, len(cfg.Volumes)))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file (YAML)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON instead of YAML")
	cmd.Flags().BoolVar(&noOpen, "no-open", false, "do not open the volumes")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag is defined three lines above
	}
	return cmd
}

// checkObjects makes what serve would make, without listening.
func checkObjects(cfg *config.Config) error {
	tc, err := serverConfig(cfg)
	if err != nil {
		return err
	}
	tc.Log = zap.NewNop()
	srv, err := target.New(tc)
	if err != nil {
		return err
	}
	defer srv.Shutdown(context.Background()) //nolint:errcheck // it has no session and no volume
	for i := range cfg.Targets {
		t, err := targetConfig(cfg, &cfg.Targets[i])
		if err == nil {
			err = srv.AddTarget(t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkVolume opens what exists. Creating is left to serve.
func checkVolume(v config.Volume) error {
	switch v.Type {
	case config.VolumeMemory, config.VolumeNull:
		return nil
	case config.VolumeLVM:
		for _, d := range v.Devices {
			if !v.Create && !exists(d) {
				return fmt.Errorf("volume %s: device %s does not exist", v.Name, d)
			}
		}
		return nil // opening a group locks it against its users
	}
	if v.Create && !exists(v.Path) {
		return nil
	}
	v.ReadOnly, v.Size, v.Preallocate, v.WriteThrough, v.Create = true, 0, false, false, false
	dev, err := openDevice(v, blockdev.DefaultPool(), nil)
	if err != nil {
		return err
	}
	return dev.Close()
}
