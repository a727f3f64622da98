package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softiser/initiator"
	"softiser/internal/spc"
	"softiser/interop/internal/guest"
)

// lioSlow is a block backstore that takes 3 s for each command.
const lioSlow = `modprobe -a dm-delay loop; truncate -s 64M /tmp/slow.img; l=$(losetup -f --show /tmp/slow.img)
dmsetup create slow --table "0 131072 delay $l 0 3000" && dmsetup mknodes || die dm-delay
lio_block b0 /dev/mapper/slow`

// open opens a volume from inside the harness, where a case needs single commands.
func (e *Env) open(url string) (*initiator.LUN, error) {
	cfg, err := initiator.ParseURL(url)
	if err != nil {
		return nil, err
	}
	cfg.InitiatorName = "iqn.2026-11.softiser:harness"
	return initiator.Open(e.ctx, cfg)
}

// abortAtLIO gives up a WRITE after half a second, which is long before LIO's
// backstore is done with it.
func abortAtLIO(e *Env, url string) (string, error) {
	lun, err := e.open(url)
	if err != nil {
		return "", err
	}
	defer lun.Close()
	ctx, cancel := context.WithTimeout(e.ctx, 500*time.Millisecond)
	defer cancel()
	err = lun.Do(ctx, &initiator.Request{Op: initiator.OpWrite, Buf: make([]byte, 64<<10)})
	if !errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("the command that was given up ended with %v", err)
	}
	if n := lun.Stats().Aborts; n != 1 {
		return "", fmt.Errorf("%d ABORT TASK were sent", n)
	}
	buf := make([]byte, 64<<10)
	for _, op := range []initiator.Op{initiator.OpWrite, initiator.OpRead} {
		if err := lun.Do(e.ctx, &initiator.Request{Op: op, Off: 1 << 20, Buf: buf}); err != nil {
			return "", fmt.Errorf("the session did not go on: %w", err)
		}
	}
	if n := lun.Stats().Losses; n != 0 {
		return "", fmt.Errorf("%d connections were lost", n)
	}
	out, err := e.In("cd %s/core/iblock_0/b0/statistics/scsi_tgt_dev && echo $(cat aborts_complete aborts_no_task)", "$LIO")
	if err != nil || strings.TrimSpace(out) == "0 0" {
		return "", fmt.Errorf("LIO has counted no abort: %v %s", err, out)
	}
	return "aborted; LIO's aborts complete/no task: " + strings.TrimSpace(out), nil
}

// loginLost cuts the first connection under I/O, and the two that follow as soon
// as the initiator has sent more than its MPA Request or the head of its login.
// LIO's iSER portal then waits 15 s for the rest before it looks at anybody else.
func loginLost(e *Env, url string) (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	go func() {
		for n := 1; ; n++ {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(e.Port(3260)))
			if err != nil {
				in.Close()
				continue
			}
			limit := map[int]int64{1: 3 << 20, 2: 40, 3: 40}[n]
			go func() {
				defer in.Close()
				io.Copy(in, out)
			}()
			go func() {
				defer out.Close()
				if limit == 0 {
					io.Copy(out, in)
					return
				}
				io.CopyN(out, in, limit)
				time.Sleep(200 * time.Millisecond)
				in.Close()
			}()
		}
	}()
	began := time.Now()
	through := strings.Replace(url, strconv.Itoa(e.Port(3260)), strconv.Itoa(ln.Addr().(*net.TCPAddr).Port), 1)
	_, err = e.Host("iser-initiator", "bench", through, "--rw=randwrite", "--bsrange=512-256k", "--iodepth=32", "--size=16m", "--verify=crc32c")
	return fmt.Sprintf("recovered, verified after %v", time.Since(began).Round(time.Second)), err
}

// disabledAtLIO takes LIO's portal group away for three seconds.
//
// When LIO closes a connection over iSER, Linux 6.1 waits for the commands that LIO has, of
// which some now and then never end (isert_wait_conn, target_wait_for_cmds); the portal group
// stays as it is then. So there LIO has none: the initiator stands still, and the data of its
// writes, of 4 KiB, has come with the commands.
func disabledAtLIO(e *Env, scheme, url string) (string, error) {
	p, err := e.Start("iser-initiator", "bench", url, "--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=4m", "--rate-iops=100", "--verify=crc32c")
	if err != nil {
		return "", err
	}
	const setup = "tpg=%[1]s/iscsi/%[2]s/tpgt_1; commands() { cat %[1]s/core/*/*/statistics/scsi_lu/num_cmds; }; "
	// A login has a few commands, the run has 1024 of them.
	if _, err := e.In(setup+"until [ $(commands) -ge 200 ]; do sleep 0.1; done", "$LIO", lioIQN); err != nil {
		return "", fmt.Errorf("the I/O has not begun: %w", err)
	}
	quiet := ""
	if scheme == "iser" {
		if err := p.proc.Signal(syscall.SIGSTOP); err != nil {
			return "", err
		}
		quiet = "n=0; until [ $(commands) = $n ]; do n=$(commands); sleep 2; done; "
	}
	if _, err := e.In(setup+quiet+"echo 0 > $tpg/enable", "$LIO", lioIQN); err != nil {
		return "", err
	}
	if err := p.proc.Signal(syscall.SIGCONT); err != nil {
		return "", err
	}
	if _, err := e.In(setup+"sleep 3; echo 1 > $tpg/enable", "$LIO", lioIQN); err != nil {
		return "", err
	}
	return "recovered, verified", p.wait(90 * time.Second)
}

// gathered reads from LIO, whose memory is in pages, and looks at the capture: each
// RDMA Write of siw is one message of up to six SGEs of 4 KiB.
func gathered(_ context.Context, e *Env) (string, error) {
	pcap := filepath.Join(e.dir, "gathered.pcap")
	if _, err := e.Boot(guest.Options{Capture: pcap}); err != nil {
		return "", err
	}
	if _, err := e.In("%s", "siw_up || die siw\nlio_file f0 /tmp/f0.img 67108864; lio_target "+lioIQN+" && lio_lun 0 $lio_path && lio_portal $SELF 3260 iser || die lio\necho 1 > $tpg/enable"); err != nil {
		return "", err
	}
	if _, err := copyBack(e, fmt.Sprintf("iser://127.0.0.1:%d/%s/0", e.Port(3260), lioIQN)); err != nil {
		return "", err
	}
	time.Sleep(200 * time.Millisecond)
	e.w.drop()
	out, err := tshark(e.ctx, pcap, "-Y", "iwarp_rdma.opcode == 0 && ip.src == "+guestIP, "-T", "fields", "-e", "iwarp_mpa.ulpdulength", "-e", "iwarp_ddp.last_flag", "-e", "iwarp_rdma.opcode")
	if err != nil {
		return "", err
	}
	messages, largest, size := 0, 0, 0
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 3 {
			return "", fmt.Errorf("tshark says %q", line)
		}
		lengths, last, ops := strings.Split(f[0], ","), strings.Split(f[1], ","), strings.Split(f[2], ",")
		if len(lengths) != len(last) || len(lengths) != len(ops) {
			continue // an FPDU continued from another segment is not told apart
		}
		for i, op := range ops {
			n, err := strconv.Atoi(lengths[i])
			if err != nil {
				return "", fmt.Errorf("tshark says %q", line)
			}
			if op != "0" && op != "0x00" {
				continue
			}
			size += n - 14 // tagged header
			if last[i] == "1" || last[i] == "True" {
				messages++
				largest = max(largest, size)
				size = 0
			}
		}
	}
	if messages < 100 || largest <= 4096 {
		return "", fmt.Errorf("%d RDMA Writes of siw, the largest of %d bytes: none of several pages", messages, largest)
	}
	return fmt.Sprintf("16 MiB the same; %d RDMA Writes, the largest of %d bytes", messages, largest), nil
}

// prInitiator is our end of persistInTurns.
type prInitiator struct {
	lun *initiator.LUN
	ctx context.Context
}

// cdb runs one command; a unit attention, which tells of what the other end has
// done, is not the answer yet.
func (p *prInitiator) cdb(cdb, buf []byte, in bool) error {
	for {
		r := &initiator.Request{Op: initiator.OpCDB, CDB: cdb, Buf: buf, DataIn: in}
		err := p.lun.Do(p.ctx, r)
		var sense *spc.SenseError
		if !errors.As(err, &sense) || !sense.IsUnitAttention() {
			return err
		}
	}
}

func (p *prInitiator) out(action byte, typ spc.PRType, key, actionKey uint64) error {
	list := spc.PersistOut{Key: key, ActionKey: actionKey}
	return p.cdb(spc.AppendPersistOut(nil, action, typ, spc.PersistOutLen), list.Append(nil), false)
}

// holder is the reservation key of READ RESERVATION, 0 without one.
func (p *prInitiator) holder() (uint64, error) {
	buf := make([]byte, 24)
	if err := p.cdb(spc.AppendPersistIn(nil, spc.SAPrinReadRes, uint16(len(buf))), buf, true); err != nil && !errors.Is(err, initiator.ErrShort) {
		return 0, err
	}
	if buf[7] == 0 {
		return 0, nil
	}
	var key uint64
	for _, b := range buf[8:16] {
		key = key<<8 | uint64(b)
	}
	return key, nil
}

// persistInTurns: two initiators, two implementations, one LUN of LIO.
func persistInTurns(e *Env, scheme, url string) (string, error) {
	if _, err := e.In(`HOST=$SELF; d=$(attach %s 3260 %s) || die attach: $d; echo $d > /tmp/disk`, map[string]string{"iser": "iser", "iscsi": "tcp"}[scheme], lioIQN); err != nil {
		return "", err
	}
	lun, err := e.open(url)
	if err != nil {
		return "", err
	}
	defer lun.Close()
	us := &prInitiator{lun, e.ctx}
	linux := func(script string) error {
		_, err := e.In("%s", `d=$(cat /tmp/disk)
pr() { local n=$1; shift; for _ in 1 2 3; do sg_persist --no-inquiry "$@" $n >/tmp/pr 2>&1; [ $? = 6 ] || break; done; }
can() { dd if=/dev/zero of=$d bs=512 count=1 oflag=direct >/tmp/dd 2>&1; }
see() { dd if=$d of=/dev/null bs=512 count=1 iflag=direct >/tmp/dd 2>&1; }
`+script)
		return err
	}
	write := func() error { return lun.Do(e.ctx, &initiator.Request{Op: initiator.OpWrite, Buf: make([]byte, 512)}) }
	read := func() error { return lun.Do(e.ctx, &initiator.Request{Op: initiator.OpRead, Buf: make([]byte, 512)}) }
	const ours, theirs, again = 0xa1, 0xb2, 0xa3
	steps := []struct {
		name string
		run  func() error
	}{
		{"we register", func() error { return us.out(spc.SAProutRegister, 0, 0, ours) }},
		{"Linux registers and sees both keys", func() error {
			return linux("pr $d -o -G --param-sark=0xb2; sg_persist --no-inquiry -i -k $d > /tmp/k; grep -q 0xa1 /tmp/k && grep -q 0xb2 /tmp/k || { cat /tmp/pr /tmp/k; die keys; }")
		}},
		{"we reserve, write exclusive", func() error { return us.out(spc.SAProutReserve, spc.PRWriteExclusive, ours, 0) }},
		{"Linux reads, but cannot write or reserve", func() error {
			return linux("see || die read; can && die it wrote; pr $d -o -R --param-rk=0xb2 --prout-type=1; grep -qi conflict /tmp/pr || { cat /tmp/pr; die no conflict; }")
		}},
		{"we write", write},
		{"Linux preempts us", func() error {
			return linux("pr $d -o -P --param-rk=0xb2 --param-sark=0xa1 --prout-type=1; sg_persist --no-inquiry -i -r $d | grep -q 0xb2 || { cat /tmp/pr; die not the holder; }; can || { cat /tmp/dd; die the holder cannot write; }")
		}},
		{"we cannot write any more", func() error {
			if err := write(); !errors.Is(err, initiator.ErrReservation) {
				return fmt.Errorf("the write ended with %v", err)
			}
			return nil
		}},
		{"we see the holder, and read", func() error {
			if k, err := us.holder(); err != nil || k != theirs {
				return fmt.Errorf("holder %#x, %v", k, err)
			}
			return read()
		}},
		{"Linux releases", func() error {
			return linux("pr $d -o -L --param-rk=0xb2 --prout-type=1 && sg_persist --no-inquiry -i -r $d | grep -qi 'NO reservation' || { cat /tmp/pr; die release; }")
		}},
		{"we write again", write},
		{"we register anew and reserve, exclusive access", func() error {
			if err := us.out(spc.SAProutRegisterIgnore, 0, 0, again); err != nil {
				return err
			}
			return us.out(spc.SAProutReserve, spc.PRExclusiveAccess, again, 0)
		}},
		{"Linux cannot even read", func() error { return linux("see && die it read; can && die it wrote; true") }},
		{"we release and clear", func() error {
			if err := us.out(spc.SAProutRelease, spc.PRExclusiveAccess, again, 0); err != nil {
				return err
			}
			return us.out(spc.SAProutClear, 0, again, 0)
		}},
		{"nobody is registered, Linux writes", func() error {
			return linux("for _ in 1 2 3; do sg_turs $d >/dev/null 2>&1 && break; done; sg_persist --no-inquiry -i -k $d | grep -qi 'no registered' || die keys; can || { cat /tmp/dd; die write; }")
		}},
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			return "", fmt.Errorf("%s: %w", s.name, err)
		}
	}
	_, err = e.In("detach %s", lioIQN)
	return fmt.Sprintf("%d steps, in turns", len(steps)), err
}
