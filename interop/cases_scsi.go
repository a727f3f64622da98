package main

import (
	"context"
	"fmt"
	"strings"
)

// sg3_utils of the guest against iser-target through the kernel's disks: what
// is beyond reading, writing and identification.

const scsiTarget = `volumes:
  - {name: a, type: memory, size: 64MiB}
  - {name: b, type: memory, size: 64MiB}
targets:
  - iqn: ` + ramIQN + `
    alua_mode: explicit
    luns: [{lun: 0, volume: a}, {lun: 1, volume: b}]
admin: {state_dir: state}
`

// secondLogin logs in again under another initiator name, as a cluster's other node
// would, and sets e to its disk; d is the first one's.
const secondLogin = `
iscsiadm -m iface -I other -o delete >/dev/null 2>&1; iscsiadm -m iface -I other -o new >/dev/null && iscsiadm -m iface -I other -o update -n iface.initiatorname -v iqn.2026-11.softiser:other >/dev/null || die iface
iscsiadm -m node -o new -T @IQN -p $HOST:@PORT -I other >/dev/null && iscsiadm -m node -T @IQN -p $HOST:@PORT -I other -l >/dev/null || die second login
for i in $(seq 100); do
  for s in /sys/class/iscsi_session/session*; do
    [ "$(cat $s/initiatorname)" = iqn.2026-11.softiser:other ] && for x in $s/device/target*/*:0/block/sd*; do [ -b /dev/${x##*/} ] && e=/dev/${x##*/}; done
  done
  [ -n "${e-}" ] && break; sleep 0.1
done
[ -n "${e-}" ] || die no second disk
sg_turs -n 5 $d >/dev/null; sg_turs -n 5 $e >/dev/null
`

var scsiCases = []Case{
	sgCase("persist", "registrations, all types, preempt, clear from two initiators", secondLogin+`
pr() { local n=$1; shift; sg_persist --no-inquiry "$@" $n >/tmp/pr 2>&1; }
holder() { sg_persist --no-inquiry -i -r $d | grep -o 'Key=0x[0-9a-f]*' | cut -d= -f2; }
pr $d -o -G --param-sark=0xa1 || { cat /tmp/pr; die register; }
pr $e -o -G --param-sark=0xb2 || die register the other
sg_persist --no-inquiry -i -k $d | grep -q 0xb2 || die read keys
for t in 1 3 5 6 7 8; do
  pr $d -o -R --param-rk=0xa1 --prout-type=$t || { cat /tmp/pr; die reserve $t; }
  pr $e -o -R --param-rk=0xb2 --prout-type=$t && [ $t -lt 7 ] && die a second holder of type $t
  case $t in 1|3) dd if=/dev/zero of=$e bs=512 count=1 oflag=direct >/dev/null 2>&1 && die the other writes under type $t;;
    *) dd if=/dev/zero of=$e bs=512 count=1 oflag=direct >/tmp/dd 2>&1 || { cat /tmp/dd; die a registrant cannot write under type $t; };; esac
  pr $d -o -L --param-rk=0xa1 --prout-type=$t || { cat /tmp/pr; die release $t; }
  sg_turs -n 3 $e >/dev/null
done
pr $d -o -R --param-rk=0xa1 --prout-type=5 || die reserve; [ "$(holder)" = 0xa1 ] || die holder is $(holder)
pr $e -o -P --param-rk=0xb2 --param-sark=0xa1 --prout-type=5 || die preempt; sg_turs -n 3 $d >/dev/null; [ "$(holder)" = 0xb2 ] || die holder is $(holder) after preempt
pr $d -o -I --param-sark=0xa3 || die register and ignore
sg_persist --no-inquiry -i -s $d >/tmp/full || die full status; grep -q iqn.2026-11.softiser:other /tmp/full || { cat /tmp/full; die full status; }
sg_persist --no-inquiry -i -c $d | grep -q 'Persist Through Power Loss Capable' || die capabilities
pr $e -o -C --param-rk=0xb2 || die clear; sg_turs -n 3 $d >/dev/null
sg_persist --no-inquiry -i -k $d | grep -q 'there are NO registered' || die keys after clear
echo whole life cycle`),
	sgCase("provisioning", "UNMAP, WRITE SAME, GET LBA STATUS agree with each other", `
dd if=/dev/urandom of=$d bs=1M count=4 oflag=direct 2>/dev/null
sg_vpd -p lbpv $d | grep -q 'Unmap command supported (LBPU): 1' || die LBPU; sg_vpd -p bl $d >/tmp/bl || die block limits
sg_get_lba_status -b --lba=2048 $d | head -1 | grep -q '0$' || { sg_get_lba_status --lba=2048 $d; die written blocks are not mapped; }
sg_unmap --lba=2048 --num=2048 $d || die unmap
sg_get_lba_status --lba=2048 $d | grep -qi 'deallocated' || { sg_get_lba_status --lba=2048 $d; die unmapped blocks are mapped; }
dd if=$d bs=512 skip=2048 count=2048 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die unmapped blocks do not read as zeroes
dd if=/dev/zero bs=512 count=1 2>/dev/null | tr '\0' Z > /tmp/z
sg_write_same --16 --lba=100 --num=50 --in=/tmp/z $d || die write same 16; sg_write_same --10 --lba=150 --num=50 --in=/tmp/z $d || die write same 10
[ "$(dd if=$d bs=512 skip=100 count=100 iflag=direct 2>/dev/null | tr -d Z | wc -c)" = 0 ] || die write same wrote other data
sg_write_same --16 --unmap --lba=100 --num=100 $d || die write same unmap
dd if=$d bs=512 skip=100 count=100 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die write same unmap
wipefs -a $d >/dev/null; blkdiscard -z -o 0 -l 1M $d || die blkdiscard -z; echo all agree`),
	sgCase("compare", "COMPARE AND WRITE, VERIFY, ORWRITE", `
dd if=/dev/zero of=$d bs=4k count=4 oflag=direct 2>/dev/null
dd if=/dev/zero bs=512 count=1 2>/dev/null > /tmp/o; tr '\0' Q < /tmp/o > /tmp/q; cat /tmp/o /tmp/q > /tmp/caw
sg_compare_and_write --lba=3 --num=1 --xferlen=1024 --in=/tmp/caw $d || die compare and write
[ "$(dd if=$d bs=512 skip=3 count=1 iflag=direct 2>/dev/null | tr -d Q | wc -c)" = 0 ] || die not written
sg_compare_and_write --lba=3 --num=1 --xferlen=1024 --in=/tmp/caw $d >/tmp/mis 2>&1; [ $? = 14 ] || { cat /tmp/mis; die a miscompare was not told; }
sg_verify --lba=3 --count=1 --ndo=512 --bpc=1 --in=/tmp/q $d || die verify
sg_verify --lba=3 --count=1 --ndo=512 --bpc=1 --in=/tmp/o $d >/dev/null 2>&1 && die verify of other data
sg_verify --16 --lba=0 --count=4096 --bpc=1024 $d || die verify 16; echo as they should`),
	sgCase("copy", "EXTENDED COPY within and between units", `
o=$(disk @IQN 1) || die second unit
dd if=/dev/urandom of=$d bs=1M count=4 oflag=direct 2>/dev/null
sg_copy_results --params $d | grep -q 'Maximum target descriptor count' || sg_copy_results --params $d || die operating parameters
g() { ls -d /sys/block/${1##*/}/device/scsi_generic/sg* | sed 's|.*/|/dev/|'; }
sg_xcopy if=$(g $d) of=$(g $o) bs=512 count=4096 bpt=1024 skip=0 seek=2048 >/tmp/x 2>&1 || { cat /tmp/x; die xcopy; }
part() { dd if=$1 bs=512 skip=$2 count=$3 iflag=direct 2>/dev/null | md5sum; }
[ "$(part $d 0 4096)" = "$(part $o 2048 4096)" ] || die copied other data
sg_xcopy if=$(g $d) of=$(g $d) bs=512 count=1024 seek=50000 >/tmp/x 2>&1 || { cat /tmp/x; die xcopy within; }
[ "$(part $d 0 1024)" = "$(part $d 50000 1024)" ] || die copied other data; echo same data`),
	sgCase("alua", "port groups told and set", `
sg_rtpg -d $d | tee /tmp/rtpg; grep -q 'active/optimized' /tmp/rtpg || die rtpg
sg_stpg --standby --tp=1 $d || die stpg; sg_turs -n 2 $d >/dev/null; sg_rtpg -d $d | grep -qi standby || die not standby
sg_turs $d >/dev/null 2>&1 && die a standby port answers
o=$(disk @IQN 1) || die second unit; sg_turs -n 3 $o >/dev/null; sg_turs $o || die the second unit is in standby too; sg_rtpg -d $o | grep -qi standby && die the second unit tells standby too
sg_stpg --optimized --tp=1 $d || die stpg back; sg_turs -n 3 $d >/dev/null; sg_turs $d || die not back; echo there and back`),
	sgCase("sanitize", "overwrite and block erase", `
dd if=/dev/urandom of=$d bs=1M count=2 oflag=direct 2>/dev/null
sg_sanitize --overwrite --zero --quick --wait $d >/tmp/s 2>&1 || { cat /tmp/s; die overwrite; }
dd if=$d bs=1M count=2 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die data survive an overwrite
dd if=/dev/urandom of=$d bs=1M count=2 oflag=direct 2>/dev/null; sg_sanitize --block --quick --wait $d >/tmp/s 2>&1 || { cat /tmp/s; die block erase; }
dd if=$d bs=1M count=2 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die data survive a block erase; echo gone`),
	sgCase("format", "FORMAT UNIT, with and without IMMED: zeroes, and nothing mapped", `
dd if=/dev/urandom of=$d bs=1M count=2 oflag=direct 2>/dev/null
sg_format --format --quick --wait $d >/tmp/f 2>&1 || { cat /tmp/f; die format; }
sg_turs -n 3 $d >/dev/null; dd if=$d bs=1M count=2 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die data survive FORMAT UNIT
sg_get_lba_status $d | grep -qi deallocated || die blocks are still mapped
dd if=/dev/urandom of=$d bs=1M count=2 oflag=direct 2>/dev/null; sg_format --format --quick --early $d >/tmp/f 2>&1 || { cat /tmp/f; die format with IMMED; }
for i in $(seq 50); do sg_turs $d >/dev/null 2>&1 && break; sleep 0.1; done
dd if=$d bs=1M count=2 iflag=direct 2>/dev/null | tr -d '\0' | head -c1 | grep -q . && die data survive FORMAT UNIT with IMMED; echo zeroes`),
	sgCase("modes", "mode pages changed, logs, opcodes with usage", `
sg_opcodes -a --rctd $d >/tmp/ops || die opcodes; grep -q 'Compare and write' /tmp/ops || die compare and write is not listed
sg_opcodes --opcode=0x28 -m $d >/dev/null || die one opcode; sg_opcodes -t $d | grep -qi 'abort task' || die task management functions
sg_wr_mode --page=0xa --contents=$(sg_modes --page=0xa -r -D $d | od -An -v -tx1 -j4 | tr -s ' \n' , | sed 's/^,//;s/,$//') $d >/tmp/w 2>&1 || { cat /tmp/w; die mode select of the page as it is; }
sg_modes --page=8 -D $d | grep -qi caching || die caching page
sg_logs --all $d >/tmp/logs || die logs; sg_logs --page=0x19 $d >/dev/null || die statistics
sg_senddiag --test $d || die self-test; sg_requests $d >/dev/null || die request sense; echo all answer`),
}

func sgCase(name, expect, script string) Case {
	return Case{Name: "scsi/" + name, Expect: expect, Run: func(_ context.Context, e *Env) (string, error) {
		t, err := e.Target(scsiTarget)
		if err != nil {
			return "", err
		}
		r := strings.NewReplacer("@PORT", fmt.Sprint(t.Port), "@IQN", ramIQN)
		out, err := e.In("%s", r.Replace("dmesg -C; initiator || die iscsid\nd=$(attach tcp @PORT @IQN) || die attach: $d\n"+script+"\ndetach @IQN || die detach\nquiet_kernel || die kernel"))
		if err != nil {
			return out, err
		}
		if err := t.Stop(); err != nil {
			return "", fmt.Errorf("iser-target: %w", err)
		}
		return lastLine(out), nil
	}}
}
