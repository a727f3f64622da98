package tls13psk

import (
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash"
	"net"
	"slices"
)

// Key is a pre-shared key under one of its names.
type Key struct {
	Identity string
	PSK      []byte
	Suite    Suite // whose hash the key is for
}

// ClientConfig is what a client needs.
type ClientConfig struct {
	// Keys are what the server may choose from, the best first; all of one suite.
	Keys []Key
}

// ServerConfig is what a server needs.
type ServerConfig struct {
	// Lookup returns the key of an identity; false: there is none. It is called for a few
	// identities of a client that has proved nothing.
	Lookup func(identity string) (Key, bool)
}

// maxIdentities is how many identities of a client are looked up.
const maxIdentities = 8

var errKeys = errors.New("TLS: a client has keys of one suite, one at least")

// Client makes nc secure. It returns when the server has proved that it knows the key. nc
// is in use until the Conn is closed; it stays the caller's when there is an error.
// Deadlines are the caller's.
func Client(nc net.Conn, cfg ClientConfig) (*Conn, error) {
	if len(cfg.Keys) == 0 || !cfg.Keys[0].Suite.Known() || slices.ContainsFunc(cfg.Keys, func(k Key) bool { return k.Suite != cfg.Keys[0].Suite }) {
		return nil, errKeys
	}
	c := &Conn{Conn: nc, client: true}
	return c.shake(func() error { return c.clientHandshake(cfg) })
}

// Server makes nc secure. It returns when the client has proved that it knows the key;
// otherwise as Client.
func Server(nc net.Conn, cfg ServerConfig) (*Conn, error) {
	c := &Conn{Conn: nc}
	return c.shake(func() error { return c.serverHandshake(cfg) })
}

// shake tells the peer of what f has found wrong.
func (c *Conn) shake(f func() error) (*Conn, error) {
	err := f()
	var e *Error
	if errors.As(err, &e) && !e.Peer {
		c.mu.Lock()
		c.alertLocked(e.Alert)
		_ = c.flushLocked()
		c.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	c.done, c.useless = true, 0
	return c, nil
}

// read returns the next handshake message, which has to be of type typ.
func (c *Conn) read(typ byte) ([]byte, error) {
	for {
		msg, e := c.message()
		if e != nil {
			return nil, e
		}
		if msg != nil {
			if msg[0] != typ {
				return nil, failf(UnexpectedMessage, "handshake message %d, expected %d", msg[0], typ)
			}
			return msg, nil
		}
		t, p, err := c.record()
		switch {
		case err == errMore:
			if err := c.fill(); err != nil {
				return nil, err
			}
			continue
		case err != nil:
			return nil, err
		case t == typeHandshake && len(p) > 0:
			c.hs = append(c.hs, p...)
			continue
		case t == typeAlert && len(c.hs) == 0:
			if err := c.alerted(p); err != nil {
				return nil, err
			}
			if c.eof {
				return nil, &Error{Alert: CloseNotify, Peer: true}
			}
			continue
		}
		return nil, failf(UnexpectedMessage, "a record of type %d in the handshake", t)
	}
}

// boundary checks that nothing lies behind a message after which the keys change.
func (c *Conn) boundary() *Error {
	if len(c.hs) > 0 {
		return failf(UnexpectedMessage, "more with the old key behind a handshake message")
	}
	return nil
}

// say appends a handshake message to what is to be sent, in as many records as it takes.
func (c *Conn) say(msg []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(msg) > 0 {
		n := min(len(msg), maxPlain)
		c.appendLocked(typeHandshake, msg[:n])
		msg = msg[n:]
	}
}

func (c *Conn) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

// clientHandshake is the client's side of RFC 8446 §2.2: a pre-shared key, with the
// exchange of a fresh key besides.
func (c *Conn) clientHandshake(cfg ClientConfig) error {
	suite := cfg.Keys[0].Suite
	hello, private, e := offer(cfg)
	if e != nil {
		return e
	}
	msg, truncated := hello.encode(suite.size())
	setBinders(msg, truncated, suite, cfg.Keys)
	c.say(msg)
	if err := c.flush(); err != nil {
		return err
	}
	k := &secrets{suite: suite, transcript: suite.hash()()}
	k.transcript.Write(msg)

	msg, err := c.read(msgServerHello)
	if err != nil {
		return err
	}
	h, e := parseServerHello(msg)
	if e == nil {
		e = h.takes(suite, len(cfg.Keys), private)
	}
	if e != nil {
		return e
	}
	if e := c.boundary(); e != nil {
		return e
	}
	shared, e := h.share.shared(private[h.share.group])
	if e != nil {
		return e
	}
	k.transcript.Write(msg)
	k.agree(cfg.Keys[h.identity].PSK, shared)
	c.in.use(suite, k.serverTraffic)
	c.sealWith(suite, k.clientTraffic)
	if msg, err = c.read(msgEncryptedExtensions); err != nil {
		return err
	}
	if e := checkExtensions(msg); e != nil {
		return e
	}
	k.transcript.Write(msg)
	if err := c.readFinished(k, k.serverTraffic); err != nil {
		return err
	}
	k.data()
	c.say(finished(k, k.clientTraffic))
	if err := c.flush(); err != nil {
		return err
	}
	c.identity, c.suite = cfg.Keys[h.identity].Identity, suite
	c.in.use(suite, k.serverData)
	c.sealWith(suite, k.clientData)
	return nil
}

// offer is the ClientHello of a client: all of its keys, and all groups with a fresh share for
// each, whose private halves are by group.
func offer(cfg ClientConfig) (hello *clientHello, private map[group]*ecdh.PrivateKey, e *Error) {
	hello = &clientHello{suites: []uint16{uint16(cfg.Keys[0].Suite)}}
	rand.Read(hello.random[:])
	private = map[group]*ecdh.PrivateKey{}
	for _, g := range groups {
		k, s, e := g.generate()
		if e != nil {
			return nil, nil, e
		}
		private[g] = k
		hello.groups = append(hello.groups, uint16(g))
		hello.shares = append(hello.shares, s)
	}
	for _, k := range cfg.Keys {
		hello.identities = append(hello.identities, []byte(k.Identity))
	}
	return hello, private, nil
}

// takes checks that the server takes something that was offered: suite, one of so many keys, and
// the share of a group.
func (h *serverHello) takes(suite Suite, keys int, private map[group]*ecdh.PrivateKey) *Error {
	switch {
	case len(h.session) > 0 || h.suite != suite:
		return failf(IllegalParameter, "ServerHello has another suite or session than was offered")
	case h.retry():
		// Every group has been offered with its share.
		return failf(IllegalParameter, "the server asks for a group that it has got, or that was not offered")
	case h.identity < 0:
		return failf(HandshakeFailure, "the server takes none of the keys")
	case h.identity >= keys:
		return failf(IllegalParameter, "the server takes key %d, %d were offered", h.identity, keys)
	case private[h.share.group] == nil:
		return failf(IllegalParameter, "ServerHello has group %d, which was not offered", h.share.group)
	}
	return nil
}

// sealWith has what is sent from now on sealed with another key.
func (c *Conn) sealWith(s Suite, traffic []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.use(s, traffic)
}

// setBinders fills in the binders of a ClientHello.
func setBinders(msg []byte, truncated int, s Suite, keys []Key) {
	h := s.hash()()
	h.Write(msg[:truncated])
	sum := h.Sum(nil)
	at := truncated + 2
	for _, k := range keys {
		at += 1 + copy(msg[at+1:], s.binder(k.PSK, sum))
	}
}

// finished makes a Finished.
func finished(k *secrets, traffic []byte) []byte {
	return message(msgFinished, func(b []byte) []byte { return append(b, k.suite.finished(traffic, k.transcript.Sum(nil))...) })
}

// readFinished reads and checks the peer's Finished, the last message with its key.
func (c *Conn) readFinished(k *secrets, traffic []byte) error {
	want := k.suite.finished(traffic, k.transcript.Sum(nil))
	msg, err := c.read(msgFinished)
	if err != nil {
		return err
	}
	if len(msg) != 4+len(want) {
		return failf(DecodeError, "Finished of %d bytes", len(msg))
	}
	if !hmac.Equal(msg[4:], want) {
		return failf(DecryptError, "the peer has seen another handshake")
	}
	k.transcript.Write(msg)
	if e := c.boundary(); e != nil {
		return e
	}
	return nil
}

// serverHandshake is the server's side. The binder is checked before any work on curves.
func (c *Conn) serverHandshake(cfg ServerConfig) error {
	msg, err := c.read(msgClientHello)
	if err != nil {
		return err
	}
	h, truncated, e := parseClientHello(msg)
	if e == nil {
		e = h.check()
	}
	if e != nil {
		return e
	}
	key, index, e := choose(h, cfg)
	if e != nil {
		return e
	}
	k := &secrets{suite: key.Suite, transcript: key.Suite.hash()()}
	if e := proved(k.transcript, msg, truncated, h.binders[index], key); e != nil {
		return e
	}
	s := chooseShare(h)
	if s == nil {
		if h, s, e, err = c.retry(h, k, index, key); err != nil {
			return err
		} else if e != nil {
			return e
		}
	}
	if e := c.boundary(); e != nil {
		return e
	}
	private, own, e := s.group.generate()
	if e != nil {
		return e
	}
	shared, e := s.shared(private)
	if e != nil {
		return e
	}
	hello := &serverHello{session: h.session, suite: key.Suite, share: own, identity: index}
	rand.Read(hello.random[:])
	msg = hello.encode()
	k.transcript.Write(msg)
	c.say(msg)
	k.agree(key.PSK, shared)
	c.in.use(key.Suite, k.clientTraffic)
	c.sealWith(key.Suite, k.serverTraffic)
	msg = message(msgEncryptedExtensions, func(b []byte) []byte { return append(b, 0, 0) })
	k.transcript.Write(msg)
	c.say(msg)
	msg = finished(k, k.serverTraffic)
	k.transcript.Write(msg)
	c.say(msg)
	if err := c.flush(); err != nil {
		return err
	}
	k.data()
	c.sealWith(key.Suite, k.serverData)
	if err := c.readFinished(k, k.clientTraffic); err != nil {
		return err
	}
	c.identity, c.suite = key.Identity, key.Suite
	c.in.use(key.Suite, k.clientData)
	return nil
}

// check checks what every ClientHello has to have here.
func (h *clientHello) check() *Error {
	switch {
	case !slices.Contains(h.versions, version13):
		return failf(ProtocolVersion, "the client does not speak TLS 1.3")
	case len(h.compression) != 1 || h.compression[0] != 0:
		return failf(IllegalParameter, "ClientHello: compression")
	case !h.has(extPreSharedKey):
		return failf(HandshakeFailure, "the client has no pre-shared key")
	case !h.has(extPSKModes) || !h.has(extKeyShare) || !h.has(extSupportedGroups):
		return failf(MissingExtension, "ClientHello has not psk_key_exchange_modes, key_share and supported_groups")
	case len(h.identities) == 0 || len(h.identities) != len(h.binders):
		return failf(IllegalParameter, "ClientHello has %d identities and %d binders", len(h.identities), len(h.binders))
	case !slices.Contains(h.modes, modeDHE):
		return failf(HandshakeFailure, "the client does not offer psk_dhe_ke")
	case h.has(extEarlyData):
		return failf(HandshakeFailure, "the client sends early data")
	}
	for i, s := range h.shares {
		if !slices.Contains(h.groups, uint16(s.group)) || slices.ContainsFunc(h.shares[:i], func(o share) bool { return o.group == s.group }) {
			return failf(IllegalParameter, "ClientHello: a key share of group %d", s.group)
		}
	}
	return nil
}

// choose finds the first identity that is known, and whose suite the client has.
func choose(h *clientHello, cfg ServerConfig) (Key, int, *Error) {
	known := false
	for i, id := range h.identities[:min(len(h.identities), maxIdentities)] {
		k, ok := cfg.Lookup(string(id))
		known = known || ok
		if ok && k.Suite.Known() && slices.Contains(h.suites, uint16(k.Suite)) {
			return k, i, nil
		}
	}
	if known {
		return Key{}, 0, failf(HandshakeFailure, "the client does not offer the cipher suite of its key")
	}
	return Key{}, 0, failf(UnknownPSKIdentity, "no key has the identity %.300q", h.identities[0])
}

// proved checks a binder, and goes on with the transcript.
func proved(transcript hash.Hash, msg []byte, truncated int, binder []byte, key Key) *Error {
	transcript.Write(msg[:truncated])
	if !hmac.Equal(binder, key.Suite.binder(key.PSK, transcript.Sum(nil))) {
		return failf(DecryptError, "the client does not know the key %q", key.Identity)
	}
	transcript.Write(msg[truncated:])
	return nil
}

func chooseShare(h *clientHello) *share {
	for _, g := range groups {
		if i := slices.IndexFunc(h.shares, func(s share) bool { return s.group == g }); i >= 0 {
			return &h.shares[i]
		}
	}
	return nil
}

// retry asks for the share of a group that the client has and has not sent one of (RFC 8446
// §4.1.4), and returns the new ClientHello.
func (c *Conn) retry(first *clientHello, k *secrets, index int, key Key) (*clientHello, *share, *Error, error) {
	i := slices.IndexFunc(groups, func(g group) bool { return slices.Contains(first.groups, uint16(g)) })
	if i < 0 {
		return nil, nil, failf(HandshakeFailure, "the client has groups %v, neither X25519 nor P-256", first.groups), nil
	}
	if e := c.boundary(); e != nil {
		return nil, nil, e, nil
	}
	// The first ClientHello stands in the transcript as its hash (§4.4.1).
	sum := k.transcript.Sum(nil)
	k.transcript.Reset()
	k.transcript.Write(append(binary.BigEndian.AppendUint16([]byte{msgMessageHash, 0}, uint16(len(sum))), sum...))
	msg := (&serverHello{random: retryRandom, session: first.session, suite: key.Suite, share: share{group: groups[i]}}).encode()
	k.transcript.Write(msg)
	c.say(msg)
	if err := c.flush(); err != nil {
		return nil, nil, nil, err
	}
	msg, err := c.read(msgClientHello)
	if err != nil {
		return nil, nil, nil, err
	}
	h, truncated, e := parseClientHello(msg)
	if e == nil {
		e = h.check()
	}
	switch {
	case e != nil:
		return nil, nil, e, nil
	case len(h.shares) != 1 || h.shares[0].group != groups[i]:
		return nil, nil, failf(IllegalParameter, "the client does not send the key share that it is asked for"), nil
	case index >= len(h.identities) || string(h.identities[index]) != string(first.identities[index]) || !slices.Contains(h.suites, uint16(key.Suite)):
		return nil, nil, failf(IllegalParameter, "the second ClientHello has other keys"), nil
	}
	if e := proved(k.transcript, msg, truncated, h.binders[index], key); e != nil {
		return nil, nil, e, nil
	}
	return h, &h.shares[0], nil, nil
}
