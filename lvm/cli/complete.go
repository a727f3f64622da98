package cli

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Shell completion: the names of what is there, of the running target or on the
// devices.

// arguments are what a command takes: "vg", "lv" (VG/LV), "pv" or "" (nothing that is
// there) for each, and the last for all that follow; "file" is the shell's business.
var arguments = map[string][]string{
	"pvcreate": {"file"}, "pvremove": {"pv"}, "pvresize": {"pv"}, "pvmove": {"pv"}, "pvs": {"pv"}, "pvdisplay": {"pv"},
	"vgcreate": {"", "file"}, "vgextend": {"vg", "file"}, "vgreduce": {"vg", "pv"}, "vgremove": {"vg", ""}, "vgrename": {"vg", ""},
	"vgcfgbackup": {"vg", ""}, "vgcfgrestore": {"vg", ""}, "vgs": {"vg"}, "vgdisplay": {"vg"},
	"lvcreate": {"vg lv", "pv"}, "lvextend": {"lv", "pv"}, "lvresize": {"lv", "pv"}, "lvreduce": {"lv", ""}, "lvremove": {"vg lv"},
	"lvrename": {"vg lv", ""}, "lvchange": {"lv"}, "lvconvert": {"lv"}, "lvs": {"vg lv"}, "lvdisplay": {"vg lv"},
	"diff": {"lv", "lv", ""}, "export": {"lv", ""}, "import": {"lv", ""}, "clone": {"lv", ""},
}

// completionWait bounds how long the shell waits for names.
const completionWait = 2 * time.Second

// complete has the shell offer names for the arguments of a command.
func (a *app) complete(c *cobra.Command) {
	kinds := arguments[c.Name()]
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		kind := ""
		if len(kinds) > 0 {
			kind = kinds[min(len(args), len(kinds)-1)]
		}
		if kind == "file" {
			return nil, cobra.ShellCompDirectiveDefault
		}
		var names []string
		if cmd.Name() == "lvrename" && len(args) == 1 && !strings.Contains(args[0], "/") {
			names = a.names("lvs", "lv_name", args[0])
		}
		for k := range strings.FieldsSeq(kind) {
			names = append(names, a.names(k+"s", map[string]string{"vg": "vg_name", "lv": "lv_full_name", "pv": "pv_name"}[k])...)
		}
		return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, word) || slices.Contains(args, n) }), cobra.ShellCompDirectiveNoFileComp
	}
	if f := c.Flags().Lookup("options"); f != nil {
		completeColumns(c)
	}
	a.completeVolumes(c)
}

// volumeFlags are those whose value is a logical volume, as which columns name it.
var volumeFlags = map[string]string{"export from": "lv_full_name", "lvcreate thinpool": "lv_full_name", "pvmove name": "lv_name"}

func (a *app) completeVolumes(c *cobra.Command) {
	for of, column := range volumeFlags {
		name, flag, _ := strings.Cut(of, " ")
		if name != c.Name() {
			continue
		}
		err := c.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return slices.DeleteFunc(a.names("lvs", column), func(n string) bool { return !strings.HasPrefix(n, word) }), cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err) // the flag is not there, or has been registered twice
		}
	}
}

// completeColumns has the shell offer columns for the last word of a list.
func completeColumns(c *cobra.Command) {
	columns := func(_ *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		before := word[:strings.LastIndexAny(word, ",+#-")+1]
		var out []string
		for i := range fields {
			if name := before + fields[i].name; strings.HasPrefix(name, word) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	for _, flag := range []string{"options", "sort"} {
		if err := c.RegisterFlagCompletionFunc(flag, columns); err != nil {
			panic(err) // the flag is not there, or has been registered twice
		}
	}
}

// names runs a report of one column; what it cannot tell is not offered.
func (a *app) names(report, column string, of ...string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completionWait)
	defer cancel()
	args := slices.Concat([]string{report, "--noheadings", "-o", column}, of)
	if len(a.devices) > 0 {
		args = append(args, "--devices", strings.Join(a.devices, ","))
	}
	env := a.env
	env.Ask = nil
	var out, ignored bytes.Buffer
	if Run(ctx, env, args, nil, &out, &ignored) != nil {
		return nil
	}
	return strings.Fields(out.String())
}
