package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"softiser/lvm/meta"
)

// vgcfgrestore writes metadata from a backup to the devices that it names.
func (a vgCommands) vgcfgrestore() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "vgcfgrestore VG", Short: "Make metadata that was backed up a group's own again", Args: cobra.ExactArgs(1)}
	c.Flags().StringVarP(&file, "file", "f", "", "what to restore (default /etc/lvm/backup/VG)")
	c.Flags().CountVar(&a.force, "force", "restore a group with thin pools, too")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if file == "" {
			file = "/etc/lvm/backup/" + args[0]
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		old, err := meta.Load(text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		g, err := a.group(args[0])
		if err != nil {
			return err
		}
		now := g.Metadata()
		if err := a.withThinPools(old, now); err != nil {
			return err
		}
		inUse := ""
		if n := len(g.InUse()); n > 0 {
			inUse = fmt.Sprintf(" while %d of its volumes are in use", n)
		}
		if err := a.ask(cmd.Context(), "restoring %s gives %s the logical volumes of revision %d instead of %d; data stays where it is: really restore it%s?", file, args[0], old.Seqno, now.Seqno, inUse); err != nil {
			return err
		}
		if err := g.Restore(old, a.why()); err != nil {
			return err
		}
		a.say("Restored volume group %s.", args[0])
		return nil
	}
	return c
}

// withThinPools refuses, as lvm2 does, to restore a group with thin pools unless it is
// forced: a pool counts its changes, and one of another time is not opened.
func (a vgCommands) withThinPools(vgs ...*meta.VG) error {
	for _, v := range vgs {
		i := slices.IndexFunc(v.LVs, func(lv *meta.LV) bool { return segment(lv, meta.ThinPool) != nil })
		if i < 0 {
			continue
		}
		if a.force == 0 {
			return fmt.Errorf("volume group %q has the thin pool %s, whose own metadata must be of the same time: --force restores it all the same", v.Name, v.LVs[i].Name)
		}
		fmt.Fprintf(a.err, "  WARNING: Forced restore of Volume Group %s with thin volumes.\n", v.Name)
		return nil
	}
	return nil
}
