package iscsi

import (
	"io"
	"slices"
)

// LoginInitiatorConfig says who logs in where and how.
type LoginInitiatorConfig struct {
	InitiatorName  string
	InitiatorAlias string
	TargetName     string // empty for discovery
	SessionType    SessionType
	ISID           ISID
	TSIH           uint16 // of the session to join; 0 opens or reinstates one
	CID            uint16
	CmdSN          uint32 // of the session's next command
	ITT            uint32
	Settings       Settings
	Profile        KeyProfile
	Auth           *InitiatorAuth // nil: no authentication
	Rand           io.Reader      // source of challenges; nil means crypto/rand
}

// LoginInitiator is the initiator's login of one connection. It does no I/O and
// is not safe for concurrent use.
type LoginInitiator struct {
	cfg    LoginInitiatorConfig
	neg    *Negotiation
	chap   chapInitiator
	auth   authState
	stage  Stage
	rounds int

	asked     bool  // the last request had T
	askedNSG  Stage // its NSG
	expStatSN uint32
	gotFirst  bool
	result    LoginResult

	in  TextBuffer
	out textSender
}

// NewLoginInitiator prepares a login.
func NewLoginInitiator(cfg LoginInitiatorConfig) *LoginInitiator {
	l := &LoginInitiator{cfg: cfg, stage: StageOperational}
	l.neg = NewNegotiation(RoleInitiator, cfg.Settings, cfg.Profile, cfg.TSIH == 0)
	l.neg.SetSessionType(cfg.SessionType)
	if cfg.Auth != nil {
		l.stage = StageSecurity
		l.chap.auth = cfg.Auth
	}
	return l
}

// Result returns the outcome; valid after Next has returned done.
func (l *LoginInitiator) Result() *LoginResult { return &l.result }

// Start fills req with the first Login Request. Its Data, as that of every later
// request, is valid until the next call.
func (l *LoginInitiator) Start(req *PDU) {
	var t []byte
	t = AppendKey(t, rules[KeyInitiatorName].name, l.cfg.InitiatorName)
	if l.cfg.InitiatorAlias != "" {
		t = AppendKey(t, rules[KeyInitiatorAlias].name, l.cfg.InitiatorAlias)
	}
	if l.cfg.SessionType == NormalSession {
		t = AppendKey(t, rules[KeyTargetName].name, l.cfg.TargetName)
	}
	t = AppendKey(t, rules[KeySessionType].name, l.cfg.SessionType.String())
	t, ready := l.open(t)
	l.out.set(t, ready)
	l.request(req)
}

// open appends the first text of a stage; ready says that nothing keeps this
// side from leaving the stage.
func (l *LoginInitiator) open(t []byte) (out []byte, ready bool) {
	if l.stage == StageSecurity {
		methods := "CHAP"
		if l.cfg.Auth.Optional {
			methods = "CHAP,None"
		}
		return AppendKey(t, keyAuthMethod, methods), false
	}
	return l.neg.Offer(t), true
}

// request makes the next Login Request from the text that is waiting.
func (l *LoginInitiator) request(req *PDU) {
	data, more, ready := l.out.next()
	nsg := Stage(0)
	if l.asked = ready && !more; l.asked {
		nsg = StageFullFeature
		if l.stage == StageSecurity {
			nsg = StageOperational
		}
	}
	l.askedNSG = nsg
	*req = PDU{Data: data}
	q := req.BHS.NewLoginRequest()
	q.SetStages(l.asked, more, l.stage, nsg)
	q.SetISID(l.cfg.ISID)
	q.SetTSIH(l.cfg.TSIH)
	q.SetITT(l.cfg.ITT)
	q.SetCID(l.cfg.CID)
	q.SetCmdSN(l.cfg.CmdSN)
	q.SetExpStatSN(l.expStatSN)
	q.SetDataLen(len(data))
}

// Next takes a Login Response and fills req with the request that follows,
// unless done: then the full feature phase has begun. The error is a
// *LoginError; the connection is then of no further use.
func (l *LoginInitiator) Next(resp, req *PDU) (done bool, err error) {
	r := resp.BHS.LoginResponse()
	if err := l.checkHeader(resp); err != nil {
		return false, err
	}
	if l.out.pending() { // the target only confirmed a piece of our text
		if r.Continue() || r.Transit() || len(resp.Data) != 0 {
			return false, Refuse(LoginTargetFailure, "the target answered before our text was complete (C bit)")
		}
		l.request(req)
		return false, nil
	}
	text, complete, err := l.in.Add(resp.Data, r.Continue())
	if err != nil {
		return false, asLoginError(err, LoginTargetFailure)
	}
	if !complete {
		l.out.set(nil, false)
		l.request(req)
		return false, nil
	}
	reply, ready, err := l.text(text)
	if err != nil {
		return false, asLoginError(err, LoginTargetFailure)
	}
	if r.Transit() {
		if len(reply) > 0 {
			return false, Refuse(LoginTargetFailure, "the target left the %s with a question open", l.stage)
		}
		if err := l.transit(r); err != nil {
			return false, err
		}
		if l.stage == StageFullFeature {
			return true, nil
		}
		reply, ready = l.open(nil)
	}
	l.out.set(reply, ready)
	l.request(req)
	return false, nil
}

// checkHeader checks what must hold in every response.
func (l *LoginInitiator) checkHeader(resp *PDU) error {
	b := &resp.BHS
	r := b.LoginResponse()
	l.rounds++
	if b.Opcode() != OpLoginResponse {
		return Refuse(LoginTargetFailure, "the target sent a %s during login", b.Opcode())
	}
	if s := r.Status(); s != LoginSuccess {
		e := &LoginError{Status: s, Remote: true}
		if s.Class() == 1 {
			kvs, _ := ParseText(resp.Data)
			for _, kv := range kvs {
				if kv.Key == keyTargetAddress {
					e.Redirect = kv.Value
				}
			}
		}
		return e
	}
	switch {
	case b.AHSLen() != 0:
		return Refuse(LoginTargetFailure, "a Login Response cannot have additional header segments")
	case l.rounds > maxLoginRounds:
		return Refuse(LoginTargetFailure, "login has taken %d responses without an end", maxLoginRounds)
	case r.ITT() != l.cfg.ITT || r.ISID() != l.cfg.ISID:
		return Refuse(LoginTargetFailure, "the response carries another login's task tag or ISID")
	case r.VersionActive() != 0:
		return Refuse(LoginBadVersion, "the target chose version %d, which was not offered", r.VersionActive())
	case r.CSG() != l.stage:
		return Refuse(LoginTargetFailure, "the response is in the %s, the login in the %s", r.CSG(), l.stage)
	case r.Transit() && (!l.asked || r.NSG() != l.askedNSG || r.Continue()):
		return Refuse(LoginTargetFailure, "the target transits to the %s without being asked to", r.NSG())
	case l.gotFirst && r.StatSN() != l.expStatSN:
		return Refuse(LoginTargetFailure, "StatSN is %d, expected %d", r.StatSN(), l.expStatSN)
	}
	l.gotFirst = true
	l.expStatSN = r.StatSN() + 1
	return nil
}

// text handles one complete text of the target.
func (l *LoginInitiator) text(text []byte) (reply []byte, ready bool, err error) {
	kvs, err := ParseText(text)
	if err != nil {
		return nil, false, err
	}
	var auth, rest []KeyValue
	for _, kv := range kvs {
		if isAuthKey(kv.Key) && l.stage == StageSecurity {
			auth = append(auth, kv)
		} else {
			rest = append(rest, kv)
		}
	}
	if reply, err = l.neg.Receive(nil, rest, l.stage); err != nil {
		return nil, false, err
	}
	if l.stage == StageSecurity {
		return l.security(reply, auth)
	}
	return reply, l.neg.Settled(), nil
}

// security goes one step on in the authentication.
func (l *LoginInitiator) security(dst []byte, auth []KeyValue) (reply []byte, ready bool, err error) {
	keys, err := parseCHAP(auth)
	if err != nil {
		return dst, false, Refuse(LoginAuthFailure, "%v", err)
	}
	switch l.auth {
	case authNone:
		i := slices.IndexFunc(auth, func(kv KeyValue) bool { return kv.Key == keyAuthMethod })
		switch {
		case i >= 0 && auth[i].Value == "CHAP":
			l.auth = authMethod
			return l.chap.offer(dst), false, nil
		case i >= 0 && auth[i].Value == valueNone && l.cfg.Auth.Optional:
			l.auth = authDone
			return dst, true, nil
		case i >= 0:
			return dst, false, Refuse(LoginAuthFailure, "the target answered AuthMethod=%.40s; it does not do CHAP, which this initiator insists on", auth[i].Value)
		}
		return dst, false, Refuse(LoginAuthFailure, "the target did not answer AuthMethod")
	case authMethod:
		reply, err = l.chap.respond(dst, &keys, l.cfg.Rand)
		l.auth = authChallenged
		l.result.AuthUser = l.cfg.Auth.User
		return reply, true, err
	case authChallenged:
		if err = l.chap.verify(&keys); err != nil {
			return dst, false, err
		}
		l.auth = authDone
	}
	return dst, true, nil
}

// transit enters the next stage.
func (l *LoginInitiator) transit(r LoginResponse) error {
	if l.stage == StageSecurity && l.auth != authDone {
		return Refuse(LoginAuthFailure, "the target ended SecurityNegotiation before the authentication was complete")
	}
	l.stage = r.NSG()
	if l.stage != StageFullFeature {
		return nil
	}
	if err := l.neg.Finish(); err != nil {
		return err
	}
	if r.TSIH() == 0 && l.cfg.SessionType == NormalSession {
		return Refuse(LoginTargetFailure, "the final Login Response has TSIH 0 (RFC 7143 §11.13.3)")
	}
	l.result.LoginIdentity = LoginIdentity{
		InitiatorName: l.cfg.InitiatorName, InitiatorAlias: l.cfg.InitiatorAlias,
		TargetName: l.cfg.TargetName, SessionType: l.cfg.SessionType,
		ISID: l.cfg.ISID, TSIH: r.TSIH(), CID: l.cfg.CID, CmdSN: l.cfg.CmdSN,
	}
	p := l.neg.Params()
	p.InitiatorName, p.InitiatorAlias = l.cfg.InitiatorName, l.cfg.InitiatorAlias
	p.TargetName, p.SessionType = l.cfg.TargetName, l.cfg.SessionType
	l.result.Params = p
	s := r.Sequence()
	l.result.StatSN, l.result.ExpCmdSN, l.result.MaxCmdSN = l.expStatSN, s.ExpCmdSN, s.MaxCmdSN
	return nil
}
