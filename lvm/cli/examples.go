package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples of each command, for its help. They follow one another.
var examples = map[string]string{
	"lvm": "truncate -s 20G disk0.img disk1.img\n" +
		"export LVM_DEVICES=$PWD/disk0.img,$PWD/disk1.img\n" +
		"iser-target lvm vgcreate vg0 disk0.img disk1.img\n" +
		"iser-target lvm lvcreate -L 10g -n data vg0\n" +
		"iser-target lvm lvs",
	"pvcreate":     "iser-target lvm pvcreate --devices ./disk0.img,./disk1.img ./disk0.img ./disk1.img",
	"pvremove":     "iser-target lvm pvremove ./disk1.img",
	"pvresize":     "iser-target lvm pvresize ./disk0.img",
	"pvmove":       "iser-target lvm pvmove ./disk0.img ./disk1.img\niser-target lvm pvmove -n data /dev/sdb:0-999 /dev/sdc",
	"vgcreate":     "iser-target lvm vgcreate vg0 ./disk0.img",
	"vgextend":     "iser-target lvm vgextend vg0 ./disk1.img",
	"vgreduce":     "iser-target lvm vgreduce vg0 ./disk1.img",
	"vgremove":     "iser-target lvm vgremove vg0",
	"vgrename":     "iser-target lvm vgrename vg0 vg1",
	"vgcfgbackup":  "iser-target lvm vgcfgbackup -f vg0.backup vg0",
	"vgcfgrestore": "iser-target lvm vgcfgrestore -f vg0.backup vg0",
	"lvcreate": "iser-target lvm lvcreate -L 10g -n data vg0                         # linear\n" +
		"iser-target lvm lvcreate -s -L 1g -n data-snap vg0/data             # a snapshot of it\n" +
		"iser-target lvm lvcreate -T -L 100g vg0/pool                        # a thin pool\n" +
		"iser-target lvm lvcreate -T -V 1t -n thin0 vg0/pool                 # a thin volume in it",
	"lvextend":  "iser-target lvm lvextend -L +5g vg0/data",
	"lvreduce":  "iser-target lvm lvreduce -y -L 5g vg0/data",
	"lvresize":  "iser-target lvm lvresize -L 8g vg0/data",
	"lvremove":  "iser-target lvm lvremove -y vg0/data-snap",
	"lvrename":  "iser-target lvm lvrename vg0 data archive",
	"lvchange":  "iser-target lvm lvchange -p r vg0/data",
	"lvconvert": "iser-target lvm lvconvert --merge vg0/data-snap",
	"pvs":       "iser-target lvm pvs -o +pv_used",
	"vgs":       "iser-target lvm vgs --units g --reportformat json",
	"lvs":       "iser-target lvm lvs -a -o +devices vg0\niser-target lvm lvs -S 'lv_size>1g && lv_name=~^data'",
	"pvdisplay": "iser-target lvm pvdisplay ./disk0.img",
	"vgdisplay": "iser-target lvm vgdisplay vg0",
	"lvdisplay": "iser-target lvm lvdisplay vg0/data",
	"diff":      "iser-target lvm diff vg0/data-snap vg0/data",
	"export":    "iser-target lvm export vg0/data-snap | gzip > data.gz\niser-target lvm export --from vg0/monday vg0/tuesday --output tuesday.stream",
	"import":    "zcat data.gz | iser-target lvm import vg1/data\niser-target lvm import --input tuesday.stream vg1/data",
	"clone":     "iser-target lvm clone vg0/data copy",
}

func exemplify(c *cobra.Command) {
	if text := examples[c.Name()]; text != "" {
		c.Example = "  " + strings.ReplaceAll(text, "\n", "\n  ")
	}
}
