package initiator

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/iser"
)

// CarriedSession is a session that another process has brought to rest.
type CarriedSession struct {
	FD   int `json:"-"`    // the caller's of Carry; who opens a volume with it takes it
	File int `json:"file"` // index of FD on its way

	State json.RawMessage `json:"state"` // see Check
}

// carriedState is CarriedSession.State.
type carriedState struct {
	Target    string           `json:"target"`
	Initiator string           `json:"initiator"`
	ISID      [6]byte          `json:"isid"`
	TSIH      uint16           `json:"tsih"`
	User      string           `json:"user,omitempty"`
	Portal    string           `json:"portal"`
	CmdSN     uint32           `json:"cmdsn"` // of the next command
	ExpCmdSN  uint32           `json:"exp_cmdsn"`
	MaxCmdSN  uint32           `json:"max_cmdsn"`
	StatSN    uint32           `json:"exp_statsn"`
	Params    iscsi.Params     `json:"params"`
	Stream    iscsitcp.Carried `json:"stream"`
	RDMA      *iser.Carried    `json:"rdma,omitempty"` // of one over iSER, nil for others
}

// Close gives the descriptor back, if nobody has taken it.
func (k *CarriedSession) Close() {
	if k.FD >= 0 {
		syscall.Close(k.FD)
		k.FD = -1
	}
}

// errNoRest is why a session cannot go to another process.
var errNoRest = errors.New("initiator: the session is in no state to be carried")

// Check says what is wrong with a session that has come from another process with files
// descriptors of all kinds. Nothing is touched.
func (k *CarriedSession) Check(files int) error {
	if k.File < 0 || k.File >= files {
		return errors.New("initiator: no descriptor has come with the session")
	}
	_, err := k.state()
	return err
}

// state reads State, and checks it.
func (k *CarriedSession) state() (*carriedState, error) {
	x := new(carriedState)
	if err := json.Unmarshal(k.State, x); err != nil {
		return nil, fmt.Errorf("initiator: a session of another process: %w", err)
	}
	return x, x.check()
}

// check says what no session that is carried can have negotiated or counted.
func (k *carriedState) check() error {
	if err := errors.Join(iscsi.CheckName(k.Target), iscsi.CheckName(k.Initiator), k.Stream.Check()); err != nil {
		return err
	}
	const maxLen = 1<<24 - 1
	p := &k.Params
	for _, l := range []struct {
		name     string
		v        uint32
		min, max uint32
	}{
		{"MaxRecvDataSegmentLength", p.MaxRecvDataSegmentLength, 512, maxLen}, {"MaxXmitDataSegmentLength", p.MaxXmitDataSegmentLength, 512, maxLen},
		{"MaxBurstLength", p.MaxBurstLength, 512, maxLen}, {"FirstBurstLength", p.FirstBurstLength, 512, maxLen},
		{"MaxOutstandingR2T", p.MaxOutstandingR2T, 1, 1<<16 - 1}, {"ErrorRecoveryLevel", p.ErrorRecoveryLevel, 0, 0},
		{"HeaderDigest", uint32(p.HeaderDigest), 0, uint32(iscsi.DigestCRC32C)}, {"DataDigest", uint32(p.DataDigest), 0, uint32(iscsi.DigestCRC32C)},
		{"window", k.MaxCmdSN + 1 - k.ExpCmdSN, 0, 1<<16 - 1}, {"outstanding commands", k.CmdSN - k.ExpCmdSN, 0, 1<<16 - 1},
	} {
		if l.v < l.min || l.v > l.max {
			return fmt.Errorf("initiator: a session with %s %d; want %d to %d", l.name, l.v, l.min, l.max)
		}
	}
	switch {
	case p.RDMAExtensions != (k.RDMA != nil) || p.SessionType != iscsi.NormalSession:
		return errors.New("initiator: it is no session over plain TCP or iSER")
	case len(k.Stream.Tags) > 0:
		return errors.New("initiator: a session with target transfer tags")
	case k.RDMA != nil:
		return k.RDMA.Check(iscsi.RoleInitiator, p)
	}
	return nil
}

// takeUp makes a connection of Config.Carried, which Check has accepted.
func (s *Session) takeUp(from *CarriedSession) (*conn, error) {
	k, err := from.state()
	if err != nil {
		from.Close()
		return nil, err
	}
	if !s.transport.goesOnWith(k) || k.Target != s.cfg.TargetName || k.Initiator != s.cfg.InitiatorName || k.ISID != s.cfg.ISID {
		from.Close()
		return nil, errNoRest
	}
	f := os.NewFile(uintptr(from.FD), "handed over")
	from.FD = -1
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	dm, err := s.transport.restore(nc, k)
	if err != nil {
		nc.Close()
		return nil, err
	}
	l := &login{
		params: k.Params, win: iscsi.SenderWindow{CmdSN: k.CmdSN, ExpCmdSN: k.ExpCmdSN, MaxCmdSN: k.MaxCmdSN},
		statSN: k.StatSN, tsih: k.TSIH, user: k.User, limits: dm.Limits(), transport: dm.Describe(), done: make(chan struct{}),
	}
	l.finish(nil)
	c := &conn{dm: dm, login: l, gone: make(chan struct{}), s: s}
	c.enter()
	s.mu.Lock()
	s.portal = k.Portal
	s.mu.Unlock()
	return c, nil
}
