package nvmf

import (
	"encoding/binary"
	"slices"
	"time"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// adminCommand carries out an admin command; nil: there is no such command.
type adminCommand func(adminRequest)

// adminRequest is a request of an admin queue, as its commands see it.
type adminRequest struct{ *request }

// ioAdmin are the admin commands of an I/O controller, discoveryAdmin those of a
// discovery controller.
var ioAdmin, discoveryAdmin [256]adminCommand

func init() {
	ioAdmin = [256]adminCommand{
		nvme.AdminGetLogPage:  adminRequest.getLogPage,
		nvme.AdminIdentify:    adminRequest.identify,
		nvme.AdminAbort:       adminRequest.abort,
		nvme.AdminSetFeatures: adminRequest.setFeatures,
		nvme.AdminGetFeatures: adminRequest.getFeatures,
		nvme.AdminAsyncEvent:  adminRequest.asyncEvent,
		nvme.AdminKeepAlive:   adminRequest.stayAlive,
		nvme.AdminFormatNVM:   func(r adminRequest) { rewriteRequest{volumeRequest{r.request}}.format() },
		nvme.AdminSanitize:    func(r adminRequest) { rewriteRequest{volumeRequest{r.request}}.sanitize() },
	}
	discoveryAdmin = [256]adminCommand{
		nvme.AdminGetLogPage:  adminRequest.getLogPage,
		nvme.AdminIdentify:    adminRequest.identify,
		nvme.AdminSetFeatures: adminRequest.setFeatures,
		nvme.AdminGetFeatures: adminRequest.getFeatures,
		nvme.AdminAsyncEvent:  adminRequest.asyncEvent,
		nvme.AdminKeepAlive:   adminRequest.stayAlive,
	}
}

// run carries out an admin command.
func (r adminRequest) run() {
	c := r.q.ctrl
	do := c.sub.admin[r.sqe().Opcode()]
	switch {
	case r.sqe().Fuse() != nvme.FuseNone:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
	case !c.ready():
		r.end(nvme.CommandSequenceError | nvme.DoNotRetry)
	case do == nil:
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
	default:
		do(r)
	}
}

func (r adminRequest) asyncEvent() { r.q.ctrl.events.await(r.request) }

func (r adminRequest) stayAlive() { r.end(nvme.Success) }

// abort is a hint: bit 0 of the result says that the command was not aborted.
func (r adminRequest) abort() {
	v := r.sqe().CDW(10)
	r.result = 1
	if r.q.ctrl.abortOne(uint16(v), uint16(v>>16)) {
		r.result = 0
	}
	r.end(nvme.Success)
}

// abortOne aborts a command of an I/O queue; it reports whether there is one.
func (c *controller) abortOne(sqid, cid uint16) (found bool) {
	c.abort(func(r *request) bool {
		hit := r.q.id == sqid && (r.sqe().CID() == cid || r.fused.second && r.fused.firstCID == cid)
		found = found || hit
		return hit
	})
	return found
}

// identify answers Identify.
func (r adminRequest) identify() {
	q := r.sqe().Identify()
	c := r.q.ctrl
	if c.sub.kind == nvme.TypeDiscovery {
		if q.CNS() != nvme.CNSController {
			r.end(nvme.InvalidField | nvme.DoNotRetry)
			return
		}
		r.reply(c.identify(r.q.t).AppendTo(nil))
		return
	}
	b, s := c.structure(q, r.q.t)
	if s != nvme.Success {
		r.end(s | nvme.DoNotRetry)
		return
	}
	r.reply(b)
}

// structure makes what an Identify command asks of an I/O controller.
func (c *controller) structure(q nvme.Identify, t nvme.QueueTransport) ([]byte, nvme.Status) {
	switch q.CNS() {
	case nvme.CNSController:
		return c.identify(t).AppendTo(nil), nvme.Success
	case nvme.CNSActiveNamespaces, nvme.CNSCommandSetActive, nvme.CNSAllocatedNamespaces:
		if q.NSID() >= nvme.NSIDAll-1 {
			return nil, nvme.InvalidNamespace
		}
		if q.CNS() == nvme.CNSCommandSetActive && q.CommandSet() != nvme.CSINVM {
			return nil, nvme.InvalidField
		}
		var ids []uint32
		for _, n := range c.sub.list() {
			ids = append(ids, n.id)
		}
		return nvme.AppendNSIDs(nil, ids, q.NSID()), nvme.Success
	case nvme.CNSAttachedControllers, nvme.CNSControllers:
		all := c.sub.all()
		if q.CNS() == nvme.CNSAttachedControllers && c.sub.namespace(q.NSID()) == nil {
			switch id := q.NSID(); {
			case id == nvme.NSIDAll:
				return nil, nvme.InvalidField
			case id == 0 || id > maxNSID:
				return nil, nvme.InvalidNamespace
			}
			all = nil // an inactive namespace is attached to none
		}
		var ids []uint16
		for _, o := range all {
			ids = append(ids, o.id)
		}
		slices.Sort(ids)
		return nvme.AppendCntlIDs(nil, ids, q.CntlID()), nvme.Success
	case nvme.CNSCommandSetController:
		if q.CommandSet() != nvme.CSINVM {
			return nil, nvme.InvalidField
		}
		l := nvme.CommandSetLimits{VerifySize: maxTransferShift, WriteZeroesSize: maxZeroesShift}
		return l.AppendTo(nil), nvme.Success
	case nvme.CNSCommandSets:
		if id := q.CntlID(); id != nvme.CntlIDDynamic && c.sub.controller(id) == nil {
			return nil, nvme.InvalidField
		}
		b := make([]byte, nvme.IdentifyLen)
		b[0] = 1 // one combination: the NVM command set alone
		return b, nvme.Success
	case nvme.CNSNamespace, nvme.CNSAllocatedNamespace, nvme.CNSDescriptors, nvme.CNSCommandSetNamespace, nvme.CNSIndependentNamespace:
		return c.namespaceStructure(q)
	}
	return nil, nvme.InvalidField
}

// namespaceStructure makes the structures that are about one namespace.
func (c *controller) namespaceStructure(q nvme.Identify) ([]byte, nvme.Status) {
	if q.CNS() == nvme.CNSCommandSetNamespace && q.CommandSet() != nvme.CSINVM {
		return nil, nvme.InvalidField
	}
	id := q.NSID()
	n := c.sub.namespace(id)
	if n == nil {
		if id == 0 || id > maxNSID || q.CNS() == nvme.CNSDescriptors {
			return nil, nvme.InvalidNamespace
		}
		return make([]byte, nvme.IdentifyLen), nvme.Success // an inactive namespace: all zeroes
	}
	d := n.identify()
	if c.access(n).Status() != nvme.Success {
		d.Use = 0
	}
	switch q.CNS() {
	case nvme.CNSDescriptors:
		return n.names.AppendTo(nil), nvme.Success
	case nvme.CNSCommandSetNamespace:
		return make([]byte, nvme.IdentifyLen), nvme.Success // nothing beyond CNS 00h
	case nvme.CNSIndependentNamespace:
		b := make([]byte, nvme.IdentifyLen)
		b[0], b[1], b[2], b[3] = d.NSFEAT&nvme.FeatNoReuse, d.NMIC, d.RESCAP, d.FPI
		if !n.vol.Geo().Info.WriteCache {
			b[0] |= nvme.FeatNoCache
		}
		binary.LittleEndian.PutUint32(b[4:], d.ANAGroup)
		b[8], b[14] = d.NSATTR, 1 // NSTAT: ready
		return b, nvme.Success
	}
	return d.AppendTo(nil), nvme.Success
}

// Limits of commands, log2 of pages of 4 KiB.
const (
	maxTransferShift = 10 // 4 MiB
	maxZeroesShift   = 15 // 128 MiB
	maxTransfer      = 4096 << maxTransferShift
)

// identify fills the controller's structure, for a host that asks over t.
func (c *controller) identify(t nvme.QueueTransport) *nvme.Controller {
	l := &c.fe.cfg.Limits
	d := &nvme.Controller{
		Serial: c.sub.cfg.Serial, Model: c.sub.cfg.Model, Firmware: "1.0", RAB: 6,
		MDTS: maxTransferShift, CntlID: c.id, Version: uint32(nvme.Version14), Type: c.sub.kind,
		CTRATT: nvme.AttrHostID128 | nvme.AttrTBKAS, AERL: maxEventRequests - 1, ACL: 3, LPA: nvme.LogExtended | nvme.LogSupportedPages,
		KAS: uint16(keepAliveUnit / (100 * time.Millisecond)), SGLS: nvme.SGLSupported | nvme.SGLInCapsuleOffset,
		Subsystem: c.sub.cfg.NQN, ELPE: errorEntries - 1, FRMW: 3, MaxCmd: uint16(l.Entries),
	}
	if t.NamesHostMemory(nvme.SGLTransport) {
		d.SGLS |= nvme.SGLTransportBlock
	}
	if t.NamesHostMemory(nvme.SGLKeyed) {
		d.SGLS |= nvme.SGLKeyedSupported
	}
	if c.sub.kind == nvme.TypeDiscovery {
		d.OAES = nvme.NoticeDiscovery
		d.LPA &^= nvme.LogSupportedPages // which goes with log pages 12h and 13h
		return d
	}
	d.CMIC = nvme.SharedPorts | nvme.SharedControllers
	d.OAES = nvme.NoticeNamespace | nvme.NoticeANA
	d.CMIC |= nvme.ReportsANA
	d.ANATT, d.ANACAP, d.ANAGRPMax, d.ANAGroups = changeTime, allStates, maxNSID, maxNSID
	d.LPA |= nvme.LogEffects
	d.SQES, d.CQES = 0x66, 0x44
	d.Namespaces, d.MaxNamespaces = maxNSID, maxNSID
	d.ONCS = nvme.HasCompare | nvme.HasDSM | nvme.HasWriteZeroes | nvme.HasReservations | nvme.HasVerify | nvme.HasCopy
	if c.sub.anyMarks() {
		d.ONCS |= nvme.HasUncorrectable
	}
	// Always: a host asks once, and would not flush namespaces with a cache that come later.
	d.VWC = nvme.CachePresent | nvme.FlushAll
	if c.sub.anyRewrites() {
		d.OACS |= nvme.HasFormat
		d.FNA = nvme.FormatNotForAll
	}
	d.Sanitize = c.sub.sanitizes()
	if c.sub.anyProtects() {
		d.NWPC = nvme.WriteProtects
	}
	d.FUSES, d.OCFS = nvme.FusesCompareWrite, nvme.CopyFormat0
	d.IOCCSZ = uint32(nvme.SQELen+t.MaxInCapsule()) / 16
	d.IORCSZ = nvme.CQELen / 16
	d.MSDBD = 1
	d.RTD3E = uint32(10 * time.Second / time.Microsecond)
	return d
}

// ioCapsule is the in-capsule data that an I/O command over TCP may have.
const ioCapsule = 16 << 10

// getLogPage answers Get Log Page.
func (r adminRequest) getLogPage() {
	q := r.sqe().GetLogPage()
	c := r.q.ctrl
	have, s := r.hostData()
	if s == nvme.Success && uint64(have) != q.Length() {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s == nvme.Success && (q.Offset()%4 != 0 || have > maxTransfer) {
		s = nvme.InvalidField | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	if !r.room(int(have)) {
		return
	}
	page, read := c.page(q, r.request)
	if page == nil {
		r.end(nvme.InvalidLogPage | nvme.DoNotRetry)
		return
	}
	if q.Offset() > uint64(len(page)) {
		r.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	r.answer(page[q.Offset():])
	if !q.RetainEvent() && read < eventKinds {
		c.events.read(read)
	}
}

// page makes a log page, nil if there is none, and tells which event it is about. What the host has
// read is forgotten, unless it retains the event or will be refused for the offset.
func (c *controller) page(q nvme.GetLogPage, r *request) ([]byte, event) {
	const none = eventKinds
	if c.sub.kind == nvme.TypeDiscovery {
		switch q.ID() {
		case nvme.LogDiscovery:
			return c.fe.discoveryPage(c.host, r.q), eventDiscovery
		case nvme.LogSupported:
			return nvme.AppendTable(nil, map[nvme.LogID]uint32{nvme.LogSupported: 1, nvme.LogDiscovery: 1}), none
		}
		return nil, none
	}
	switch q.ID() {
	case nvme.LogSupported:
		return nvme.AppendTable(nil, map[nvme.LogID]uint32{
			nvme.LogSupported: 1, nvme.LogError: 1, nvme.LogSMART: 1, nvme.LogFirmware: 1, nvme.LogChangedNamespaces: 1,
			nvme.LogCommandEffects: 1, nvme.LogFeatures: 1, nvme.LogMICommands: 1, nvme.LogReservation: 1, nvme.LogSanitize: 1, nvme.LogANA: 1,
		}), none
	case nvme.LogError:
		return c.log.page(), none
	case nvme.LogSMART:
		return c.health().AppendTo(nil), none
	case nvme.LogFirmware:
		b := make([]byte, 512)
		b[0] = 1
		copy(b[8:16], "1.0     ")
		return b, none
	case nvme.LogChangedNamespaces:
		return nvme.AppendChanged(nil, c.events.takeChanged(q.RetainEvent() || q.Offset() > nvme.ChangedLen)), eventNamespace
	case nvme.LogCommandEffects:
		return c.effects(), none
	case nvme.LogFeatures:
		return featureTable(), none
	case nvme.LogMICommands:
		return make([]byte, nvme.TableLen), none
	case nvme.LogANA:
		return c.anaPage(q), eventANA
	case nvme.LogSanitize:
		return c.sub.sanitizeLog().AppendTo(nil), eventSanitize
	case nvme.LogReservation:
		n := c.events.takeNotice(q.RetainEvent() || q.Offset() > nvme.ReservationLogLen)
		return n.AppendTo(nil), eventReservation
	}
	return nil, none
}

// health sums up what the volumes count.
func (c *controller) health() *nvme.SMART {
	s := &nvme.SMART{Temperature: 310, Spare: 100, SpareLimit: 10}
	units := func(n uint64) uint64 { return (n + 511999) / 512000 }
	for _, n := range c.sub.list() {
		k := &n.vol.Counters
		s.UnitsRead += units(k.ReadBytes.Load())
		s.UnitsWritten += units(k.WriteBytes.Load())
		s.Reads += k.Reads.Load()
		s.Writes += k.Writes.Load()
	}
	c.log.mu.Lock()
	s.ErrorEntries = c.log.count
	c.log.mu.Unlock()
	return s
}

// effects is the commands supported and effects log.
func (c *controller) effects() []byte {
	e := nvme.Effects{Admin: map[nvme.Opcode]uint32{}, IO: map[nvme.Opcode]uint32{}}
	for _, op := range []nvme.Opcode{nvme.AdminGetLogPage, nvme.AdminIdentify, nvme.AdminAbort, nvme.AdminSetFeatures, nvme.AdminGetFeatures, nvme.AdminAsyncEvent, nvme.AdminKeepAlive} {
		e.Admin[op] = nvme.EffectSupported
	}
	if c.sub.anyRewrites() {
		e.Admin[nvme.AdminFormatNVM] = nvme.EffectSupported | nvme.EffectContent | nvme.EffectAlone
	}
	if c.sub.sanitizes() != 0 {
		e.Admin[nvme.AdminSanitize] = nvme.EffectSupported | nvme.EffectContent
	}
	for op := range ioTable {
		row := &ioTable[op]
		if row.run == nil || nvme.Opcode(op) == nvme.OpWriteUncorrectable && !c.sub.anyMarks() {
			continue
		}
		e.IO[nvme.Opcode(op)] = nvme.EffectSupported
		if row.access == volume.Writes && nvme.Opcode(op) != nvme.OpFlush {
			e.IO[nvme.Opcode(op)] |= nvme.EffectContent
		}
	}
	return e.AppendTo(nil)
}
