package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/rdma"
)

// Our NVMe host attaches to Linux's target, nvmet.

const (
	labNQN     = "nqn.2024-01.lab:disk0"
	labHostNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-0000000000aa"

	// nvmetUp serves a file of 64 MiB over TCP on the port that is forwarded.
	nvmetUp = `modprobe -a nvmet nvmet-tcp || die module
n=/sys/kernel/config/nvmet; s=$n/subsystems/` + labNQN + `; p=$n/ports/1
[ -d /sys/kernel/config/nvmet ] || mount -t configfs none /sys/kernel/config
truncate -s 64M /tmp/ns.img; mkdir -p $s/namespaces/1 $p || die configfs
echo 1 > $s/attr_allow_any_host; echo /tmp/ns.img > $s/namespaces/1/device_path; echo 1 > $s/namespaces/1/buffered_io; echo 1 > $s/namespaces/1/enable || die namespace
echo tcp > $p/addr_trtype; echo ipv4 > $p/addr_adrfam; echo 0.0.0.0 > $p/addr_traddr; echo 3260 > $p/addr_trsvcid
ln -s $s $p/subsystems/disk0 || die port`
	nvmetGone = `rm /sys/kernel/config/nvmet/ports/1/subsystems/`
	nvmetBack = `ln -s /sys/kernel/config/nvmet/subsystems/` + labNQN + ` /sys/kernel/config/nvmet/ports/1/subsystems/`
)

var nvmeHostCases = []Case{
	{Name: "nvme-host/tcp", Expect: "discovery, reads and writes of every size with and without digests, several queues", Short: true, Fresh: true, Run: nvmetBasics},
	{Name: "nvme-host/tcp-reconnect", Expect: "the port goes away under I/O and comes back; everything is verified, the size follows", Fresh: true, Run: nvmetReconnect},
	{Name: "nvme-host/rdma", Expect: "discovery, reads and writes of every size with and without CRC, several queues", Fresh: true, Run: nvmetBasicsRDMA},
	{Name: "nvme-host/rdma-reconnect", Expect: "the port goes away under I/O and comes back; everything is verified", Fresh: true, Run: nvmetReconnectRDMA},
}

func (e *Env) nvmet() (nvmf.Config, error) {
	_, err := e.In("%s", nvmetUp)
	return nvmf.Config{Address: fmt.Sprintf("127.0.0.1:%d", e.Port(3260)), Subsystem: labNQN, HostNQN: labHostNQN}, err
}

// nvmetRDMA serves 64 MiB over siw on the port that is forwarded.
func (e *Env) nvmetRDMA() (nvmf.Config, error) {
	_, err := e.In("%s", "siw_up || die siw\nnvmet_up rdma "+labNQN+" || die nvmet")
	return nvmf.Config{Transport: nvmf.TransportRDMA, Address: fmt.Sprintf("127.0.0.1:%d", e.Port(3260)), Subsystem: labNQN, HostNQN: labHostNQN}, err
}

// nvmetBasics does what a volume can be asked for.
func nvmetBasics(ctx context.Context, e *Env) (string, error) {
	cfg, err := e.nvmet()
	if err != nil {
		return "", err
	}
	entries, err := discovered(ctx, cfg)
	if err != nil {
		return "", err
	}
	for _, digests := range []bool{false, true} {
		cfg.HeaderDigest, cfg.DataDigest = digests, digests
		if _, err := verified(ctx, cfg); err != nil {
			return "", fmt.Errorf("digests %t: %w", digests, err)
		}
	}
	return fmt.Sprintf("%d entries discovered, verified", entries), nil
}

// nvmetBasicsRDMA is nvmetBasics over siw.
func nvmetBasicsRDMA(ctx context.Context, e *Env) (string, error) {
	cfg, err := e.nvmetRDMA()
	if err != nil {
		return "", err
	}
	entries, err := discovered(ctx, cfg)
	if err != nil {
		return "", err
	}
	how := ""
	for _, crc := range []rdma.CRCMode{rdma.CRCRequired, rdma.CRCOff} {
		cfg.RDMA.CRC = crc
		if how, err = verified(ctx, cfg); err != nil {
			return "", fmt.Errorf("CRC %v: %w", crc, err)
		}
	}
	return fmt.Sprintf("%d entries discovered, verified; %s", entries, how), nil
}

// discovered returns how many entries the discovery service at cfg.Address has. That of
// cfg.Subsystem is one of them.
func discovered(ctx context.Context, cfg nvmf.Config) (int, error) {
	subsystem := cfg.Subsystem
	cfg.Subsystem = ""
	log, err := nvmf.Discover(ctx, cfg)
	if err != nil {
		return 0, err
	}
	for _, r := range log.Records {
		if r.Subsystem == subsystem && r.Transport == cfg.Transport.String() && r.Service == "3260" {
			return len(log.Records), nil
		}
	}
	return 0, fmt.Errorf("discovery has found %+v", log.Records)
}

// verified does everySize over two queues, and returns how they were connected.
func verified(ctx context.Context, cfg nvmf.Config) (how string, err error) {
	cfg.Queues = 2
	n, err := nvmf.Open(ctx, cfg)
	if err != nil {
		return "", err
	}
	how = n.Association().Describe()
	return how, errors.Join(everySize(ctx, n), n.Close())
}

// everySize writes and reads every power of two from a block to 4 MiB, and then flushes
// and discards.
func everySize(ctx context.Context, n *nvmf.Namespace) error {
	data, back := make([]byte, 4<<20), make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{9}).Read(data)
	for k := n.Info().BlockSize; k <= len(data); k *= 2 {
		off := int64(k) * 3 % (32 << 20)
		if err := n.Do(ctx, &blockio.Request{Op: blockio.OpWrite, Off: off, Buf: data[:k], FUA: k == 4096}); err != nil {
			return fmt.Errorf("write of %d bytes: %w", k, err)
		}
		if _, err := n.ReadAt(back[:k], off); err != nil || !bytes.Equal(back[:k], data[:k]) {
			return fmt.Errorf("read of %d bytes: %v, or other data", k, err)
		}
	}
	for _, r := range []blockio.Request{
		{Op: blockio.OpFlush}, {Op: blockio.OpDiscard, Off: 4 << 20, Len: 1 << 20},
	} {
		if err := n.Do(ctx, &r); err != nil {
			return fmt.Errorf("operation %d: %w", r.Op, err)
		}
	}
	if err := n.WriteZeroes(1<<20, 1<<20, true); err != nil {
		return fmt.Errorf("zeroes: %w", err)
	}
	if _, err := n.ReadAt(back[:1<<20], 1<<20); err != nil || !bytes.Equal(back[:1<<20], make([]byte, 1<<20)) {
		return fmt.Errorf("zeroes: %v, or other data", err)
	}
	return nil
}

// nvmetReconnect writes and reads while the controller is taken away.
func nvmetReconnect(ctx context.Context, e *Env) (string, error) {
	cfg, err := e.nvmet()
	if err != nil {
		return "", err
	}
	n, err := nvmf.Open(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer n.Close()
	sizes := make(chan int64, 8)
	defer n.OnResize(func(i blockdev.Info) { sizes <- i.Size })()
	said, err := nvmetCut(ctx, e, n, "disk0")
	if err != nil {
		return "", err
	}
	if _, err := e.In("truncate -s 96M /tmp/ns.img; echo 1 > /sys/kernel/config/nvmet/subsystems/%s/namespaces/1/revalidate_size", labNQN); err != nil {
		return "", err
	}
	select {
	case size := <-sizes:
		if size != 96<<20 {
			return "", fmt.Errorf("the size is %d now", size)
		}
	case <-time.After(30 * time.Second):
		return "", fmt.Errorf("nobody was told of the new size")
	}
	return said, nil
}

// nvmetReconnectRDMA is nvmetReconnect over siw.
func nvmetReconnectRDMA(ctx context.Context, e *Env) (said string, err error) {
	cfg, err := e.nvmetRDMA()
	if err != nil {
		return "", err
	}
	n, err := nvmf.Open(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	return nvmetCut(ctx, e, n, labNQN)
}

// nvmetCut writes to n and reads it back while the port loses the subsystem, which has it
// under the name of link, twice.
func nvmetCut(ctx context.Context, e *Env, n *nvmf.Namespace, link string) (string, error) {
	done := make(chan error, 1)
	stop := make(chan struct{})
	go func() {
		buf, back := make([]byte, 16<<10), make([]byte, 16<<10)
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			for k := range buf {
				buf[k] = byte(i + k)
			}
			off := int64(i%1000) * 16 << 10
			if _, err := n.WriteAt(buf, off); err != nil {
				done <- err
				return
			}
			if _, err := n.ReadAt(back, off); err != nil || !bytes.Equal(back, buf) {
				done <- fmt.Errorf("%v, or other data", err)
				return
			}
		}
	}()
	for range 2 {
		time.Sleep(300 * time.Millisecond) // under I/O
		if _, err := e.In("%s", nvmetGone+link+"; sleep 0.5; "+nvmetBack+link); err != nil {
			return "", err
		}
		if err := n.Association().WaitLive(ctx); err != nil {
			return "", err
		}
	}
	close(stop)
	if err := <-done; err != nil {
		return "", err
	}
	s := n.Stats()
	if s.Losses == 0 {
		return "", fmt.Errorf("no connection was lost")
	}
	return fmt.Sprintf("%d losses, %d commands replayed, %d commands", s.Losses, s.Replayed, s.Commands), nil
}
