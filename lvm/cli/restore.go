package cli

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

func (a *app) vgcfgrestore() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "vgcfgrestore VG", Short: "Make metadata that was backed up a group's own again", Args: cobra.ExactArgs(1)}
	c.Flags().StringVarP(&file, "file", "f", "", "what to restore (default /etc/lvm/backup/VG)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if a.env.Manager != nil {
			return fmt.Errorf("volume group %q is open in this target: end it, then restore", args[0])
		}
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
		// A pool counts its changes: one of another time would be damaged by the next.
		for _, v := range []*meta.VG{old, g.Metadata()} {
			if i := slices.IndexFunc(v.LVs, func(lv *meta.LV) bool { return segment(lv, meta.ThinPool) != nil }); i >= 0 {
				return fmt.Errorf("volume group %q has the thin pool %s, whose own metadata would have to be of the same time: lvm2's vgcfgrestore --force restores it", args[0], v.LVs[i].Name)
			}
		}
		if err := a.ask(cmd.Context(), "restoring %s gives %s the logical volumes of revision %d instead of %d; data stays where it is: really restore it?", file, args[0], old.Seqno, g.Metadata().Seqno); err != nil {
			return err
		}
		if err := g.VG(func(x *vg.Group) error { return x.Restore(old, a.why()) }); err != nil {
			return err
		}
		a.say("Restored volume group %s.", args[0])
		return nil
	}
	return c
}
