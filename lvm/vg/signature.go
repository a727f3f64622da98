package vg

import (
	"bytes"
	"fmt"
)

// signature is a mark by which a device tells what it holds.
type signature struct {
	what  string
	off   int64
	magic string
}

// signatures that pvcreate and lvcreate will not overwrite unasked.
var signatures = []signature{
	{"an ext2/3/4 file system", 0x438, "\x53\xef"},
	{"an XFS file system", 0, "XFSB"},
	{"a btrfs file system", 0x10040, "_BHRfS_M"},
	{"an F2FS file system", 0x400, "\x10\x20\xf5\xf2"},
	{"a GFS2 file system", 0x10000, "\x01\x16\x19\x70"},
	{"an OCFS2 file system", 0x2000, "OCFSV2"},
	{"an exFAT file system", 3, "EXFAT   "},
	{"an NTFS file system", 3, "NTFS    "},
	{"a FAT file system", 0x36, "FAT1"},
	{"a FAT file system", 0x52, "FAT32"},
	{"an ISO 9660 image", 0x8001, "CD001"},
	{"a squashfs image", 0, "hsqs"},
	{"a swap area", 4086, "SWAPSPACE2"},
	{"a LUKS container", 0, "LUKS\xba\xbe"},
	{"a BitLocker volume", 3, "-FVE-FS-"},
	{"an md RAID member", 0, "\xfc\x4e\x2b\xa9"},
	{"an md RAID member", 4096, "\xfc\x4e\x2b\xa9"},
	{"a bcache device", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca"},
	{"a GPT partition table", 512, "EFI PART"},
	{"a GPT partition table", 4096, "EFI PART"},
	{"an MBR partition table", 510, "\x55\xaa"},
	{"a ZFS label", 0x21000, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
	{"a qcow2 image", 0, "QFI\xfb"},
	{"a VMDK image", 0, "KDMV"},
	{"a VHDX image", 0, "vhdxfile"},
	{"a dm-snapshot exception store", 0, "SnAp"},
	{"a DRBD device", 0, "\x83\x74\x02\x6b"},
}

// found lists the signatures on d; each whole match is one.
func (d *Disk) found() ([]signature, error) {
	var out []signature
	for _, s := range signatures {
		if d.Size() < s.off+int64(len(s.magic)) {
			continue
		}
		b := make([]byte, len(s.magic))
		if err := d.readAt(b, s.off); err != nil {
			return nil, wrapf(err, "%s: looking for signatures", d.Path)
		}
		if bytes.Equal(b, []byte(s.magic)) {
			out = append(out, s)
		}
	}
	return out, nil
}

// guard refuses a device that holds something, or wipes it if force.
func (d *Disk) guard(force bool) error {
	sigs, err := d.found()
	if err != nil {
		return err
	}
	for _, s := range sigs {
		if !force {
			return fmt.Errorf("%s: %w: %s at offset %d; wipe it first, or force", d.Path, ErrForeign, s.what, s.off)
		}
		if err := d.writeAt(make([]byte, len(s.magic)), s.off); err != nil {
			return wrapf(err, "%s: wiping %s", d.Path, s.what)
		}
	}
	return nil
}
