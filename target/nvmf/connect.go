package nvmf

import (
	"cmp"
	"errors"

	"go.uber.org/zap"

	"softiser/internal/nvme"
	"softiser/target/internal/loglimit"
)

// connectRequest is a request with a Connect command, which makes a queue of a connection.
type connectRequest struct{ *request }

// start fetches the data of the command first.
func (r connectRequest) start() {
	n, s := r.hostData()
	if s == nvme.Success && n != nvme.ConnectDataLen {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	r.q.conn.Place.Talks()
	r.param(nvme.ConnectDataLen, func(r *request) { connectRequest{r}.decide() })
}

// refusal is a Connect that is refused.
type refusal struct {
	status nvme.Status
	result uint64
	why    string
}

// invalid says which parameter is wrong.
func invalid(inData bool, at uint16, why string) *refusal {
	return &refusal{nvme.ConnectInvalidParameters | nvme.DoNotRetry, nvme.InvalidParameter(inData, at), why}
}

func notAdmitted() *refusal {
	return &refusal{nvme.ConnectInvalidHost | nvme.DoNotRetry, nvme.InvalidParameter(true, nvme.ConnectDataAtHost), "the host may not connect"}
}

// decide goes on when the data of Connect has arrived. If another Connect has made the connection
// a queue meanwhile, this one is refused: a second controller would have no queue, and might
// evade the authentication that the first one requires.
func (r connectRequest) decide() {
	if r.q.ctrl != nil {
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
		return
	}
	d, err := nvme.ParseConnectData(r.params)
	no := r.refuses(err)
	if no == nil {
		no = r.q.refusesChannel(&d)
	}
	if no == nil && r.q.identity != nil {
		r.q.memory.proved(d.Host) // TLS has shown that it is this host
	}
	if no == nil && r.sqe().Connect().QID() == 0 {
		no = r.associate(&d)
	} else if no == nil {
		no = r.joinQueue(&d)
	}
	if no != nil {
		r.q.fe.countRefused(no.status)
		r.q.fe.lines.refused.Info(r.q.log, "NVMe: Connect refused", loglimit.PeerText("host", d.Host), loglimit.PeerText("subsystem", d.Subsystem),
			zap.Stringer("status", no.status), zap.String("reason", no.why))
		r.result = no.result
		r.end(no.status)
		return
	}
	r.end(nvme.Success)
}

// refuses checks what does not depend on the kind of queue; err is what is wrong with the data.
func (r connectRequest) refuses(err error) *refusal {
	c := r.sqe().Connect()
	var name *nvme.NameError
	switch {
	case c.RecordFormat() != 0:
		return &refusal{nvme.ConnectIncompatibleFormat | nvme.DoNotRetry, 0, "the record format is not 0"}
	case errors.As(err, &name):
		return invalid(true, name.Offset, name.Error())
	case err != nil:
		return &refusal{nvme.SGLDataLengthInvalid | nvme.DoNotRetry, 0, err.Error()}
	case c.SQSize() == 0 || int(c.SQSize()) >= r.q.fe.cfg.Limits.Entries:
		return invalid(false, nvme.ConnectAtSQSize, "the queue has no size that is possible")
	}
	return nil
}

// associate makes a controller.
func (r connectRequest) associate(d *nvme.ConnectData) *refusal {
	q, c := r.q, r.sqe().Connect()
	s := q.fe.find(d.Subsystem)
	switch {
	case s == nil:
		return invalid(true, nvme.ConnectDataAtSubsystem, "there is no such subsystem")
	case !s.admits(d.Host, q.conn.Remote.Addr()):
		return notAdmitted()
	case d.CntlID != nvme.CntlIDDynamic:
		return invalid(true, nvme.ConnectDataAtCntlID, "the admin queue makes its controller")
	}
	q.authenticate(s, d)
	ctrl, err := newController(q, s, d, c.KeepAlive())
	if err != nil {
		return &refusal{nvme.ConnectControllerBusy, 0, err.Error()}
	}
	r.enter(ctrl, c)
	q.fe.lines.hosts.Info(ctrl.zlog, "NVMe host connected", ctrl.named(), zap.String("transport", ctrl.connection), zap.Duration("keep_alive", ctrl.alive.timeout),
		zap.String("tls", cmp.Or(ctrl.tlsKey, "none")), zap.Bool("authenticates", q.auth != nil))
	return nil
}

// joinQueue makes an I/O queue of a controller.
func (r connectRequest) joinQueue(d *nvme.ConnectData) *refusal {
	q, c := r.q, r.sqe().Connect()
	s := q.fe.find(d.Subsystem)
	if s == nil || s.kind == nvme.TypeDiscovery {
		return invalid(true, nvme.ConnectDataAtSubsystem, "there is no such subsystem with I/O queues")
	}
	ctrl := s.controller(d.CntlID)
	switch {
	case ctrl == nil:
		return invalid(true, nvme.ConnectDataAtCntlID, "there is no such controller")
	case ctrl.host != d.Host || ctrl.hostID != d.HostID:
		return invalid(true, nvme.ConnectDataAtHost, "the controller is another host's")
	case !s.admits(d.Host, q.conn.Remote.Addr()): // each queue has an address of its own
		return notAdmitted()
	case int(c.QID()) > ctrl.queueLimit():
		return invalid(false, nvme.ConnectAtQID, "the controller has no such queue")
	}
	// A queue whose host has to prove itself joins when it has done so.
	join := ctrl.join
	if q.authenticate(s, d) {
		join = ctrl.mayJoin
	}
	if st := join(q, c.QID()); st != nvme.Success {
		return &refusal{st, 0, "the controller is not enabled, or has the queue"}
	}
	r.enter(ctrl, c)
	return nil
}

// enter makes the connection a queue of its controller, and sets the result of Connect, which
// tells the host whether it has to authenticate before it can use the queue.
func (r connectRequest) enter(ctrl *controller, c nvme.Connect) {
	q := r.q
	q.id, q.entries = c.QID(), int(c.SQSize())+1
	q.noFlow = c.Attributes()&nvme.ConnectDisableFlowControl != 0
	q.t.SetEntries(q.entries)
	q.mu.Lock()
	q.ctrl = ctrl
	q.mu.Unlock()
	res := nvme.ConnectResult(ctrl.id)
	if q.auth != nil {
		res |= nvme.AuthRequired
	} else {
		q.letIn()
	}
	r.result = uint64(res)
}

func (c *controller) queueLimit() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.limit
}
