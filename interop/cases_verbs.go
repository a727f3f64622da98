package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
)

// Our verbs against the kernel's siw, with rdma-core's own tools.
var verbsCases = concat(
	rpingMatrix(),
	[]Case{
		{Name: "verbs/rping-16-connections", Expect: "16 kernel clients at once, all verified", Run: rpingMany},
		{Name: "verbs/ucmatose-kernel-client", Expect: "test passes on both ends", Run: ucmatoseKernelClient},
		{Name: "verbs/ucmatose-kernel-server", Expect: "test passes on both ends", Run: ucmatoseKernelServer},
		{Name: "verbs/mpa-rev-1", Expect: "accepted and answered in kind; siw has ORD 0 then", Fresh: true, Run: mpaRev1},
		{Name: "verbs/reject", Expect: "the kernel's client reports the reject", Run: rejected},
		{Name: "verbs/abrupt-close", Expect: "both ends end, nothing hangs, kernel silent", Run: abruptClose},
		{Name: "verbs/half-handshake", Expect: "siw gives up after its 5 s, our listener goes on", Run: halfHandshake},
	})

// rpingMatrix is rping in both directions under each setting of siw.
func rpingMatrix() []Case {
	var cases []Case
	for _, s := range []struct {
		name, siw, ours string
		short           bool
	}{
		{"crc-off", "", "--crc=off", false},
		{"crc-kernel-asks", "mpa_crc_required=1", "--crc=offered", false},
		{"crc-we-ask", "", "--crc=required", true},
		{"p2p", "peer_to_peer=1", "--crc=off", false},
		{"p2p-crc", "peer_to_peer=1 mpa_crc_required=1", "--crc=required", false},
		{"gso", "try_gso=1", "--crc=required --large-fpdu", false},
	} {
		cases = append(cases,
			Case{Name: "verbs/rping-kernel-client-" + s.name, Expect: "every size verified", Short: s.short, Run: func(_ context.Context, e *Env) (string, error) {
				return rpingKernelClient(e, s.siw, s.ours)
			}},
			Case{Name: "verbs/rping-kernel-server-" + s.name, Expect: "every size verified", Short: s.short, Run: func(_ context.Context, e *Env) (string, error) {
				return rpingKernelServer(e, s.siw, s.ours)
			}})
	}
	return cases
}

// rpingSizes are buffer sizes; rping itself takes 23 bytes to 64 KiB.
var rpingSizes = []int{32, 100, 1460, 4096, 8192, 65535}

// settings makes siw behave as asked; it is loaded once per guest.
func settings(siw string) string {
	s := "siw_up || die siw\nsiw_set mpa_crc_required 0; siw_set peer_to_peer 0; siw_set try_gso 0\n"
	for _, kv := range strings.Fields(siw) {
		k, v, _ := strings.Cut(kv, "=")
		s += fmt.Sprintf("siw_set %s %s\n", k, v)
	}
	return s
}

func rpingKernelClient(e *Env, siw, ours string) (string, error) {
	for _, size := range rpingSizes {
		port := ports.Free()
		args := append([]string{"rdma", "rping", "-s", "-a", "127.0.0.1", "-C", "20", "-S", strconv.Itoa(size), "-V"}, strings.Fields(ours)...)
		p, err := e.StartServer(port, "iser-initiator", args...)
		if err != nil {
			return "", err
		}
		if _, err := e.In(settings(siw)+"limited 60 rping -c -a $HOST -p %d -C 20 -S %d -V || die rping %d", port, size, size); err != nil {
			return "", err
		}
		if err := p.wait(time.Minute); err != nil {
			return "", fmt.Errorf("our server, %d bytes: %w", size, err)
		}
	}
	return fmt.Sprintf("%d sizes verified", len(rpingSizes)), nil
}

func rpingKernelServer(e *Env, siw, ours string) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	for _, size := range rpingSizes {
		server, err := g.Start(fmt.Sprintf("%slimited 120 rping -s -a $SELF -p 7174 -C 20 -S %d -V", settings(siw), size))
		if err != nil {
			return "", err
		}
		args := append([]string{"rdma", "rping", "-c", "-a", "127.0.0.1", "-p", strconv.Itoa(e.Port(7174)), "-C", "20", "-S", strconv.Itoa(size), "-V"}, strings.Fields(ours)...)
		if err := e.retry(func() error { _, err := e.Host("iser-initiator", args...); return err }); err != nil {
			return "", err
		}
		if _, err := server.Wait(e.ctx); err != nil {
			return "", fmt.Errorf("the kernel's server, %d bytes: %w", size, err)
		}
	}
	return fmt.Sprintf("%d sizes verified", len(rpingSizes)), nil
}

// final is an error that a repetition will not do away with.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// retry repeats f for a while: a listener of siw does not show anywhere,
// so the only way to know that it is there is to connect.
// An error of f that is final ends it.
func (e *Env) retry(f func() error) error {
	var err error
	for range 240 { // a minute, for a guest that has little of the processor
		if err = f(); err == nil || errors.As(err, new(final)) {
			return err
		}
		select {
		case <-e.ctx.Done():
			return err
		case <-time.After(250 * time.Millisecond):
		}
	}
	return err
}

// rpings16 runs 16 clients at once, for a port and a time limit in seconds.
const rpings16 = `for i in $(seq 16); do { limited %[2]d rping -c -a $HOST -p %[1]d -C 10 -S 4096 -V; echo $? >/tmp/many.$i.rc; } >/tmp/many.$i 2>&1 & done; wait
bad=; for i in $(seq 16); do [ $(cat /tmp/many.$i.rc) = 0 ] || bad="$bad $i"; done; head -n99 /tmp/many.*; [ -z "$bad" ]`

func rpingMany(_ context.Context, e *Env) (string, error) {
	port := ports.Free()
	if _, err := e.StartServer(port, "iser-initiator", "rdma", "rping", "-s", "-a", "127.0.0.1", "-P", "-V", "--crc=required"); err != nil {
		return "", err
	}
	out, err := e.In(settings("")+rpings16, port, 60)
	if err != nil {
		return out, err
	}
	return "16 of 16", nil
}

func ucmatoseKernelClient(_ context.Context, e *Env) (string, error) {
	port := ports.Free()
	p, err := e.StartServer(port, "iser-initiator", "rdma", "ucmatose", "-b", "127.0.0.1")
	if err != nil {
		return "", err
	}
	if out, err := e.In(settings("")+"timeout 60 ucmatose -s $HOST -p %d", port); err != nil {
		return out, err
	}
	return "passed", p.wait(time.Minute)
}

func ucmatoseKernelServer(_ context.Context, e *Env) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	server, err := g.Start(settings("") + "timeout 60 ucmatose -p 7471")
	if err != nil {
		return "", err
	}
	if err := e.retry(func() error {
		_, err := e.Host("iser-initiator", "rdma", "ucmatose", "-s", "127.0.0.1", "-p", strconv.Itoa(e.Port(7471)))
		return err
	}); err != nil {
		return "", err
	}
	_, err = server.Wait(e.ctx)
	return "passed", err
}

// With revision 1 nothing is said about read depths; siw's side then cannot
// read. Its client only connects and sends, so the connection itself is shown.
func mpaRev1(_ context.Context, e *Env) (string, error) {
	port := ports.Free()
	if _, err := e.StartServer(port, "iser-initiator", "rdma", "rping", "-s", "-a", "127.0.0.1", "-C", "3", "-V", "--crc=off"); err != nil {
		return "", err
	}
	if _, err := e.In("siw_up mpa_version=1 || die siw\nlimited 60 rping -c -a $HOST -p %d -C 3 -V", port); err != nil {
		return "", err
	}
	return "connected with revision 1; our end reads, writes and sends", nil
}

func rejected(_ context.Context, e *Env) (string, error) {
	c, err := newVerbsConn()
	if err != nil {
		return "", err
	}
	defer c.close()
	client, req, err := c.visitor(e, "timeout 30 rping -c -d -a $HOST -p PORT -C 1; echo rc $?")
	if err != nil {
		return "", err
	}
	if err := req.Reject([]byte("not today")); err != nil {
		return "", err
	}
	out, err := client.Wait(e.ctx)
	if err != nil || !strings.Contains(out, "RDMA_CM_EVENT_REJECTED") || strings.Contains(out, "rc 124") {
		return "", fmt.Errorf("rping's client: %v\n%s", err, out)
	}
	return "reported, at once", nil
}

// abruptClose: our rping is killed while it serves the kernel's pings. The client must
// notice, and the kernel say nothing.
func abruptClose(_ context.Context, e *Env) (string, error) {
	port := ports.Free()
	p, err := e.StartServer(port, "iser-initiator", "rdma", "rping", "-s", "-a", "127.0.0.1", "-C", "1000000", "-V")
	if err != nil {
		return "", err
	}
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	client, err := g.Start(fmt.Sprintf(`%sdmesg -C; stdbuf -oL rping -c -v -a $HOST -p %d -C 1000000 -S 100 & p=$!
for i in $(seq 100); do [ -e /proc/$p ] || break; sleep 1; done
[ -e /proc/$p ] && for t in /proc/$p/task/*; do echo "hangs: $(cat $t/comm)"; cat $t/stack; done
kill -9 $p 2>/dev/null; wait $p; echo ended $?`, settings(""), port))
	if err != nil {
		return "", err
	}
	if err := killWhilePinging(e, p, client); err != nil {
		return "", err
	}
	out, err := client.Wait(e.ctx)
	if err != nil || strings.Contains(out, "hangs: ") {
		return "", fmt.Errorf("the kernel's client went on: %v\n%s", err, out)
	}
	_, err = e.In("quiet_kernel")
	return "ended, kernel silent", err
}

// killWhilePinging kills a program of ours when the kernel's rping has had answers of it.
func killWhilePinging(e *Env, p *Process, client *guest.Job) error {
	err := e.retry(func() error {
		if !strings.Contains(client.Output(), "ping data") {
			return fmt.Errorf("no pings yet:\n%s", client.Output())
		}
		return nil
	})
	if err == nil {
		p.Kill()
	}
	return err
}

func halfHandshake(_ context.Context, e *Env) (string, error) {
	t, err := e.Target(ramTarget)
	if err != nil {
		return "", err
	}
	// Connections that say nothing, or half of a Request, beside a real login.
	out, err := e.In(`siw_up
python3 - <<'X' &
import socket, time
s = [socket.create_connection(("10.0.2.2", %d)) for i in range(20)]
for i, c in enumerate(s): c.send(b"MPA ID Req Frame\x10\x02\x00\x04"[:i])
time.sleep(8)
X
sleep 1; d=$(attach iser %d %s) || die attach; sizes $d || die sizes; detach %s`, t.Port, t.Port, ramIQN, ramIQN)
	if err != nil {
		return out, err
	}
	return "the login beside them is served", nil
}

// wait waits for a program that ends by itself.
func (p *Process) wait(limit time.Duration) error {
	select {
	case <-p.done:
		return p.err
	case <-time.After(limit):
		return fmt.Errorf("it still runs %v after its peer has ended", limit)
	}
}
