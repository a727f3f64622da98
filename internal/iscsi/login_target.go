package iscsi

import (
	"fmt"
	"io"
	"slices"
)

// LoginIdentity is who logs in to what: the first text and header of a login.
type LoginIdentity struct {
	InitiatorName  string
	InitiatorAlias string
	TargetName     string // empty in discovery sessions
	SessionType    SessionType
	ISID           ISID
	TSIH           uint16 // 0: a new session, or reinstatement of the one with the same names and ISID
	CID            uint16
	CmdSN          uint32 // of the login; the first command carries it again
}

// LoginGrant is the policy's answer to an identity.
type LoginGrant struct {
	Settings       Settings
	PortalGroupTag uint16
	TargetAlias    string
	Auth           TargetAuth
	// Proved, if not nil, is asked once, when the initiator has proved what Auth
	// requires (at once when that is nothing): may this user come in under this
	// name, to this session? Nothing that it depends on is told to anybody before.
	Proved func(user string) error
	// Numbers, for a further connection, asks for ExpCmdSN and MaxCmdSN of the
	// session, which every response carries from Proved on; nil for a new session.
	Numbers func() (expCmdSN, maxCmdSN uint32)
}

// LoginBinding is where a connection that has passed belongs.
type LoginBinding struct {
	TSIH uint16 // of the session; not 0
	// Sequence's ExpCmdSN and MaxCmdSN for the final response. For a new session
	// use NewCommandWindow with LoginResult.CmdSN.
	ExpCmdSN, MaxCmdSN uint32
}

// LoginResult is the outcome of a login, for both roles.
type LoginResult struct {
	LoginIdentity
	Params   Params
	AuthUser string // CHAP user that was proved; empty without CHAP
	StatSN   uint32 // target: next StatSN to use; initiator: next ExpStatSN
	ExpCmdSN uint32
	MaxCmdSN uint32
}

// LoginTargetConfig is a target's policy. Admit and Bind return *LoginError, or
// any error, which then ends the login with status 0300.
type LoginTargetConfig struct {
	Profile KeyProfile
	// Admit is asked once, when the initiator has named itself and the target:
	// access lists, target look-up, redirection ([Redirect]).
	Admit func(id *LoginIdentity) (*LoginGrant, error)
	// Bind is asked once, before the final response: it ends the session that is
	// reinstated, finds the session that a TSIH names, or makes a new one. It may
	// block while old tasks end.
	Bind func(r *LoginResult) (LoginBinding, error)
	// MaxText bounds the text of one round; 0 means MaxLoginText.
	MaxText int
	// Rand is the source of challenges; nil means crypto/rand.
	Rand io.Reader
}

// maxLoginRounds bounds the request-response pairs of one login.
const maxLoginRounds = 64

// authState is the target's and the initiator's place in SecurityNegotiation.
//
//	             AuthMethod=CHAP           CHAP_A               CHAP_N, CHAP_R
//	authNone ───────────────────▶ authMethod ──▶ authChallenged ──────────────▶ authDone
//	   └── AuthMethod=None ─────────────────────────────────────────────────────▶
type authState uint8

const (
	authNone authState = iota
	authMethod
	authChallenged
	authDone
)

// LoginTarget is the target's login of one connection. It does no I/O and is not
// safe for concurrent use.
type LoginTarget struct {
	cfg   LoginTargetConfig
	neg   *Negotiation
	chap  chapTarget
	auth  authState
	stage Stage

	started  bool // the first request has been seen
	admitted bool
	proved   bool // the initiator has proved what is required
	finished bool
	rounds   int
	id       LoginIdentity
	grant    *LoginGrant
	statSN   uint32
	result   LoginResult

	in  TextBuffer
	out textSender
}

// NewLoginTarget prepares a login.
func NewLoginTarget(cfg LoginTargetConfig) *LoginTarget {
	return &LoginTarget{cfg: cfg, in: TextBuffer{Limit: cfg.MaxText}}
}

// Identity returns what is known about the peer so far, for logs.
func (l *LoginTarget) Identity() LoginIdentity { return l.id }

// Result returns the outcome; valid after Handle has returned done.
func (l *LoginTarget) Result() *LoginResult { return &l.result }

// Handle takes a PDU of the initiator and fills resp with the answer, which is
// always to be sent; its Data is valid until the next call. done reports that
// the answer opens the full feature phase. An error (*LoginError) means that the
// connection is to be closed once the answer has gone out.
func (l *LoginTarget) Handle(req, resp *PDU) (done bool, err error) {
	r := resp.BHS.NewLoginResponse()
	resp.AHS, resp.Data = nil, nil
	done, lerr := l.handle(req, resp)
	r.SetITT(req.BHS.ITT())
	if lerr != nil {
		l.finished = true
		r.SetStages(false, false, 0, 0)
		r.SetStatus(lerr.Status)
		resp.Data = nil
		if lerr.Redirect != "" {
			resp.Data = AppendKey(nil, keyTargetAddress, lerr.Redirect)
		}
		err = lerr
	}
	r.SetDataLen(len(resp.Data))
	return done, err
}

// handle answers one Login Request into resp. It reports whether the login has ended; an
// error names the status of a refusal, which the caller sends.
func (l *LoginTarget) handle(req, resp *PDU) (bool, *LoginError) {
	if err := l.checkHeader(&req.BHS); err != nil {
		return false, err
	}
	q := req.BHS.LoginRequest()
	r := resp.BHS.LoginResponse()
	r.SetISID(l.id.ISID)
	r.SetTSIH(l.id.TSIH)
	r.SetSequence(l.unproved())
	l.statSN++

	transit := q.Transit()
	if l.out.pending() {
		// Our text goes on; the request is an empty one that asks for it.
		if len(req.Data) != 0 || q.Continue() {
			return false, Refuse(LoginInitiatorFailure, "the initiator sent text while the target's was still coming (C bit)")
		}
	} else {
		text, complete, err := l.in.Add(req.Data, q.Continue())
		if err != nil {
			return false, asLoginError(err, LoginInitiatorFailure)
		}
		if !complete {
			r.SetStages(false, false, l.stage, 0)
			return false, nil
		}
		reply, ready, err := l.text(text, transit)
		if l.proved && l.grant.Numbers != nil {
			exp, most := l.grant.Numbers()
			r.SetSequence(Sequence{StatSN: l.statSN - 1, ExpCmdSN: exp, MaxCmdSN: most})
		}
		if err != nil {
			return false, asLoginError(err, LoginInitiatorFailure)
		}
		l.out.set(reply, ready)
	}
	data, more, ready := l.out.next()
	resp.Data = data
	transit = transit && !more && ready
	csg, nsg := l.stage, Stage(0)
	if transit {
		nsg = q.NSG()
	}
	r.SetStages(transit, more, csg, nsg)
	if !transit {
		return false, nil
	}
	if nsg == StageFullFeature {
		if err := l.neg.Finish(); err != nil {
			return false, asLoginError(err, LoginInitiatorFailure)
		}
	}
	l.stage = nsg
	if nsg != StageFullFeature {
		return false, nil
	}
	return true, l.finish(r)
}

// checkHeader checks what must hold in every request and learns the identity
// from the first.
func (l *LoginTarget) checkHeader(b *BHS) *LoginError {
	q := b.LoginRequest()
	l.rounds++
	switch {
	case l.finished:
		return Refuse(LoginInvalidRequest, "the login is over")
	case b.Opcode() != OpLoginRequest:
		return Refuse(LoginInvalidRequest, "%s during login", b.Opcode())
	case b.AHSLen() != 0:
		return Refuse(LoginInvalidRequest, "a Login Request cannot have additional header segments")
	case l.rounds > maxLoginRounds:
		return Refuse(LoginInitiatorFailure, "login has taken %d requests without an end", maxLoginRounds)
	case q.Transit() && q.Continue():
		return Refuse(LoginInitiatorFailure, "T and C are both set (RFC 7143 §11.12.2)")
	case q.VersionMin() > 0:
		return Refuse(LoginBadVersion, "the initiator supports versions %d to %d, this target version 0", q.VersionMin(), q.VersionMax())
	}
	if !l.started {
		l.started = true
		l.stage = q.CSG()
		l.id = LoginIdentity{ISID: q.ISID(), TSIH: q.TSIH(), CID: q.CID(), CmdSN: b.CmdSN()}
		l.statSN = b.ExpStatSN()
		l.neg = NewNegotiation(RoleTarget, DefaultSettings(), l.cfg.Profile, l.id.TSIH == 0)
		if l.stage != StageSecurity && l.stage != StageOperational {
			return Refuse(LoginInvalidRequest, "login begins in the %s", l.stage)
		}
	}
	switch {
	case q.ISID() != l.id.ISID || q.TSIH() != l.id.TSIH || q.CID() != l.id.CID:
		return Refuse(LoginInitiatorFailure, "ISID, TSIH or CID changed during login")
	case q.CSG() != l.stage:
		return Refuse(LoginInvalidRequest, "the request is in the %s, the login in the %s", q.CSG(), l.stage)
	case q.Transit() && (q.NSG() <= q.CSG() || q.NSG() == 2):
		return Refuse(LoginInvalidRequest, "transit from the %s to the %s", q.CSG(), q.NSG())
	}
	return nil
}

// unproved are the numbers of a response to an initiator that has proved nothing
// yet. For a new session they are its own. Those of a session that it says it is
// part of are not for it to see: what it gets is a window that RFC 7143 §4.2.2.1
// has it ignore, because it is smaller than an empty one.
func (l *LoginTarget) unproved() Sequence {
	s := Sequence{StatSN: l.statSN, ExpCmdSN: l.id.CmdSN, MaxCmdSN: l.id.CmdSN}
	if l.id.TSIH != 0 {
		s.MaxCmdSN -= 2
	}
	return s
}

// text handles one complete text. ready says that the target agrees to leave the
// stage.
func (l *LoginTarget) text(text []byte, transit bool) (reply []byte, ready bool, err error) {
	kvs, err := ParseText(text)
	if err != nil {
		return nil, false, err
	}
	if !l.admitted {
		if reply, err = l.admit(kvs); err != nil {
			return nil, false, err
		}
	}
	var auth, rest []KeyValue
	for _, kv := range kvs {
		if isAuthKey(kv.Key) {
			auth = append(auth, kv)
		} else {
			rest = append(rest, kv)
		}
	}
	if reply, err = l.neg.Receive(reply, rest, l.stage); err != nil {
		return nil, false, err
	}
	if l.neg.discovery != (l.id.SessionType == DiscoverySession) {
		return nil, false, Refuse(LoginInitiatorFailure, "SessionType came behind the first text, which had it as %s (RFC 7143 §13.21)", l.id.SessionType)
	}
	if l.stage == StageSecurity {
		if reply, err = l.security(reply, auth); err != nil {
			return nil, false, err
		}
	}
	if err = l.prove(); err != nil {
		return nil, false, err
	}
	if l.stage == StageSecurity {
		ready = l.auth == authDone || l.auth == authNone && !l.grant.Auth.Required
		if transit && l.auth == authNone && l.grant.Auth.Required {
			return nil, false, Refuse(LoginAuthFailure, "this target requires CHAP, and the initiator did not offer AuthMethod=CHAP")
		}
	} else {
		for _, kv := range auth { // out of place here
			reply = AppendKey(reply, kv.Key, valueReject)
		}
		var ask bool
		reply, ask = l.neg.Demand(reply)
		ready = !ask
	}
	return reply, ready, nil
}

// prove asks the policy about the user, as soon as there is nothing left to prove.
func (l *LoginTarget) prove() error {
	if l.proved || l.grant.Auth.Required && l.auth != authDone {
		return nil
	}
	if l.grant.Proved != nil {
		if err := l.grant.Proved(l.chap.user); err != nil {
			return asLoginError(err, LoginTargetFailure)
		}
	}
	l.proved = true
	return nil
}

// admit reads the names, asks the policy and begins the first reply.
func (l *LoginTarget) admit(kvs []KeyValue) ([]byte, error) {
	for _, kv := range kvs {
		switch kv.Key {
		case rules[KeyInitiatorName].name:
			l.id.InitiatorName = kv.Value
		case rules[KeyInitiatorAlias].name:
			l.id.InitiatorAlias = kv.Value
		case rules[KeyTargetName].name:
			l.id.TargetName = kv.Value
		case rules[KeySessionType].name:
			if kv.Value == DiscoverySession.String() {
				l.id.SessionType = DiscoverySession
			}
		}
	}
	if l.id.InitiatorName == "" {
		return nil, Refuse(LoginMissingParameter, "the first Login Request has no InitiatorName")
	}
	if err := CheckInitiatorName(l.id.InitiatorName); err != nil {
		return nil, Refuse(LoginInitiatorFailure, "%v", err)
	}
	switch {
	case l.id.SessionType == NormalSession && l.id.TargetName == "":
		return nil, Refuse(LoginMissingParameter, "the first Login Request of %s has no TargetName, and it is not a discovery session", l.id.InitiatorName)
	}
	id := l.id
	grant, err := l.cfg.Admit(&id)
	if err != nil {
		return nil, asLoginError(err, LoginTargetFailure)
	}
	l.grant, l.admitted = grant, true
	l.chap.auth = &grant.Auth
	l.neg.SetSettings(grant.Settings)
	l.neg.SetSessionType(l.id.SessionType)
	if l.stage != StageSecurity && grant.Auth.Required {
		return nil, Refuse(LoginAuthFailure, "this target requires CHAP, but the initiator skipped SecurityNegotiation: it has no CHAP user configured")
	}
	var reply []byte
	if l.id.SessionType == NormalSession {
		if grant.TargetAlias != "" {
			reply = AppendKey(reply, rules[KeyTargetAlias].name, grant.TargetAlias)
		}
		reply = AppendKey(reply, rules[KeyTargetPortalGroupTag].name, fmt.Sprint(grant.PortalGroupTag))
	}
	return reply, nil
}

// security handles the authentication keys of one text.
func (l *LoginTarget) security(dst []byte, auth []KeyValue) ([]byte, error) {
	if len(auth) == 0 {
		return dst, nil
	}
	keys, err := parseCHAP(auth)
	if err != nil {
		return dst, Refuse(LoginAuthFailure, "%v", err)
	}
	if i := slices.IndexFunc(auth, func(kv KeyValue) bool { return kv.Key == keyAuthMethod }); i >= 0 {
		if l.auth != authNone {
			return dst, Refuse(LoginAuthFailure, "AuthMethod was sent a second time")
		}
		if dst, err = l.chooseMethod(dst, splitList(auth[i].Value)); err != nil {
			return dst, err
		}
		if len(auth) == 1 {
			return dst, nil
		}
	}
	switch {
	case l.auth == authMethod && keys.algorithms != nil && keys.response == nil:
		l.auth = authChallenged
		return l.chap.challengeFor(dst, &keys, l.cfg.Rand)
	case l.auth == authChallenged && keys.algorithms == nil:
		if dst, err = l.chap.verify(dst, &keys); err != nil {
			return dst, err
		}
		l.auth = authDone
		return dst, nil
	}
	return dst, Refuse(LoginAuthFailure, "CHAP keys came out of order")
}

// chooseMethod answers AuthMethod with the first value that both ends accept.
func (l *LoginTarget) chooseMethod(dst []byte, offered []string) ([]byte, error) {
	canCHAP := l.grant.Auth.Lookup != nil
	for _, m := range offered {
		switch {
		case m == "CHAP" && canCHAP:
			l.auth = authMethod
		case m == valueNone && !l.grant.Auth.Required:
			l.auth = authDone
		default:
			continue
		}
		return AppendKey(dst, keyAuthMethod, m), nil
	}
	if l.grant.Auth.Required {
		return dst, Refuse(LoginAuthFailure, "this target requires CHAP; the initiator offers only %.80q", offered)
	}
	return dst, Refuse(LoginAuthFailure, "the initiator insists on authentication (%.80q), but this target has no user for it", offered)
}

// finish binds the connection to a session and completes the final response.
func (l *LoginTarget) finish(r LoginResponse) *LoginError {
	l.finished = true
	l.result = LoginResult{
		LoginIdentity: l.id,
		Params:        l.neg.Params(),
		AuthUser:      l.chap.user,
		StatSN:        l.statSN,
	}
	p := &l.result.Params
	p.SessionType = l.id.SessionType
	if l.id.SessionType == NormalSession {
		p.TargetAlias, p.TargetPortalGroupTag, p.HasPortalGroup = l.grant.TargetAlias, l.grant.PortalGroupTag, true
	}
	b, err := l.cfg.Bind(&l.result)
	if err != nil {
		return asLoginError(err, LoginTargetFailure)
	}
	l.result.TSIH, l.result.ExpCmdSN, l.result.MaxCmdSN = b.TSIH, b.ExpCmdSN, b.MaxCmdSN
	// The new TSIH goes into the final response only (RFC 7143 §11.13.3).
	r.SetTSIH(b.TSIH)
	r.SetSequence(Sequence{StatSN: l.statSN - 1, ExpCmdSN: b.ExpCmdSN, MaxCmdSN: b.MaxCmdSN})
	return nil
}

// textSender cuts a text into PDUs of at most DefaultMRDSL bytes, which is what
// both ends can receive during login.
type textSender struct {
	rest  []byte
	ready bool // the stage may end with the last piece
}

func (t *textSender) set(text []byte, ready bool) { t.rest, t.ready = text, ready }

func (t *textSender) pending() bool { return len(t.rest) > 0 }

// next returns the next piece; more stands for the C bit.
func (t *textSender) next() (data []byte, more, ready bool) {
	n := min(len(t.rest), DefaultMRDSL)
	data, t.rest = t.rest[:n:n], t.rest[n:]
	return data, len(t.rest) > 0, t.ready
}
