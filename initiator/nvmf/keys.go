package nvmf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"softiser/internal/nvme/dhchap"
	"softiser/internal/nvme/tls13psk"
	"softiser/internal/nvme/tlspsk"
)

// Keys are what host and controller prove to each other, in the forms that nvme-cli prints
// and takes. Empty ones are not used. None is shown in an error.
type Keys struct {
	// Secret is ours (DHHC-1:…, of nvme gen-dhchap-key), for controllers that ask for it.
	Secret string
	// CtrlSecret is the controller's: it has to prove that it knows it, on every queue.
	CtrlSecret string
	// Hashes and DHGroups are those that the proofs may be made with, under the names of
	// Linux (sha256; null, ffdhe2048); none: every one. What else a controller chooses is refused.
	Hashes, DHGroups []string
	// TLSKey is the pre-shared key of TLS (NVMeTLSkey-1:…, of nvme gen-tls-key). With it,
	// every connection begins with TLS.
	TLSKey string
}

// use sets what the keys are for.
func (k *Keys) use(c *Config) error {
	if k.Secret == "" && k.CtrlSecret != "" {
		return errors.New("nvmf: a secret of the controller goes with one of the host")
	}
	if k.Secret == "" && len(k.Hashes)+len(k.DHGroups) > 0 {
		return errors.New("nvmf: hashes and groups of DH-HMAC-CHAP go with a secret of the host")
	}
	if k.Secret != "" {
		p := &prover{cfg: dhchap.Config{HostNQN: c.HostNQN, SubsystemNQN: c.Subsystem}}
		var err error
		if p.cfg.Host, err = dhchap.ParseSecret(k.Secret); err != nil {
			return fmt.Errorf("nvmf: the host's key: %w", err)
		}
		if k.CtrlSecret != "" {
			if p.cfg.Controller, err = dhchap.ParseSecret(k.CtrlSecret); err != nil {
				return fmt.Errorf("nvmf: the controller's key: %w", err)
			}
			if p.cfg.Controller.Equal(p.cfg.Host) {
				return errors.New("nvmf: host and controller have the same secret, which who listens could send back")
			}
		}
		if p.cfg.Allowed, err = dhchap.ParseAllowed(k.Hashes, k.DHGroups); err != nil {
			return fmt.Errorf("nvmf: %w", err)
		}
		c.Authenticate = p.prove
	}
	if k.TLSKey == "" {
		return nil
	}
	key, err := tlspsk.ParseKey(k.TLSKey)
	if err != nil {
		return fmt.Errorf("nvmf: %w", err)
	}
	names, err := tlsNames(key, c.HostNQN, c.Subsystem)
	if err != nil {
		return fmt.Errorf("nvmf: %w", err)
	}
	c.Secure = func(ctx context.Context, nc net.Conn) (net.Conn, error) { return secure(ctx, nc, names) }
	return nil
}

// prover proves who we are on the queues of an association.
type prover struct {
	cfg dhchap.Config
	tid atomic.Uint32
}

// authRoom is the room for the controller's messages, as Linux has it.
const authRoom = 4096

var (
	errNotAsked = errors.New("the controller does not ask for authentication, and so would not prove who it is")
	errEndless  = errors.New("the controller does not come to an end")
)

// prove implements Config.Authenticate. A controller that does not ask knows no secret of
// ours; that is the end if it is to prove itself.
func (p *prover) prove(ctx context.Context, x Exchange, _ uint16, required bool) error {
	if !required {
		if p.cfg.Controller != nil {
			return errNotAsked
		}
		return nil
	}
	h := dhchap.NewHost(p.cfg, uint16(p.tid.Add(1)))
	next := h.Negotiate()
	for range 4 {
		if err := x.Send(ctx, next); err != nil {
			return err
		}
		b, err := x.Receive(ctx, authRoom)
		if err != nil {
			return err
		}
		var done bool
		next, done, err = h.Handle(b)
		if next != nil && (done || err != nil) {
			err = errors.Join(err, x.Send(ctx, next))
		}
		if done || err != nil {
			return err
		}
	}
	return errEndless
}

// tlsNames returns a key under the names that it has for a subsystem; controllers know one
// or the other.
func tlsNames(k *tlspsk.Key, host, subsystem string) (l []tls13psk.Key, err error) {
	own, err := k.For(host)
	if err != nil {
		return nil, err
	}
	suite := tls13psk.AES128GCMSHA256
	if k.Suite() == tlspsk.SHA384 {
		suite = tls13psk.AES256GCMSHA384
	}
	for _, v := range []tlspsk.Version{tlspsk.Version1, tlspsk.Version0} {
		id, psk, err := own.Identity(v, host, subsystem)
		if err != nil {
			return nil, err
		}
		l = append(l, tls13psk.Key{Identity: id, PSK: psk, Suite: suite})
	}
	return l, nil
}

// secure makes a connection secure before ctx ends.
func secure(ctx context.Context, nc net.Conn, names []tls13psk.Key) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	c, err := tls13psk.Client(nc, tls13psk.ClientConfig{Keys: names})
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		nc.Close()
		hint := ""
		if e, ok := errors.AsType[*tls13psk.Error](err); ok && e.Peer && e.Alert == tls13psk.UnknownPSKIdentity {
			hint = "; it has no key for this host's NQN (--hostnqn) and the subsystem"
		}
		return nil, fmt.Errorf("nvmf: TLS with %v: %w%s", nc.RemoteAddr(), err, hint)
	}
	return c, nil
}
