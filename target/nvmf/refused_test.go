package nvmf_test

import (
	"errors"
	"testing"

	"softiser/internal/nvme"
)

// Every refusal of an admin or Fabrics command that depends on the command alone: its status, and that
// nothing comes with it.
func TestRefusedAdminCommands(t *testing.T) {
	h := open(t, nil).attach(hostNQN, 10, 1)
	identify := func(c nvme.CNS, nsid uint32, change func(*nvme.SQE)) nvme.SQE {
		return sqe(func(s *nvme.SQE) {
			s.NewIdentify(c, nsid)
			if change != nil {
				change(s)
			}
		})
	}
	otherSet := func(s *nvme.SQE) { s[47] = 2 }
	get := func(id nvme.FeatureID, nsid uint32, change func(*nvme.SQE)) nvme.SQE {
		return sqe(func(s *nvme.SQE) {
			s.NewGetFeatures(id, nsid)
			if change != nil {
				change(s)
			}
		})
	}
	set := func(id nvme.FeatureID, nsid, v uint32) nvme.SQE {
		return sqe(func(s *nvme.SQE) { s.NewSetFeatures(id, nsid, v) })
	}
	fused := func(s nvme.SQE) nvme.SQE { s.SetFuse(1); return s }
	property := sqe(func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS) })
	page, io := make([]byte, nvme.IdentifyLen), h.io[0]
	for _, c := range []struct {
		name string
		q    *queue
		s    nvme.SQE
		in   []byte
		want nvme.Status
	}{
		{"Identify: unknown structure", h.queue, identify(0x44, 1, nil), page, nvme.InvalidField},
		{"Identify: namespace 0", h.queue, identify(nvme.CNSNamespace, 0, nil), page, nvme.InvalidNamespace},
		{"Identify: a namespace too high", h.queue, identify(nvme.CNSNamespace, 1025, nil), page, nvme.InvalidNamespace},
		{"Identify: all namespaces", h.queue, identify(nvme.CNSNamespace, nvme.NSIDAll, nil), page, nvme.InvalidNamespace},
		{"Identify: descriptors of no namespace", h.queue, identify(nvme.CNSDescriptors, 7, nil), page, nvme.InvalidNamespace},
		{"Identify: a namespace in another command set", h.queue, identify(nvme.CNSCommandSetNamespace, 1, otherSet), page, nvme.InvalidField},
		{"Identify: namespaces behind the last", h.queue, identify(nvme.CNSActiveNamespaces, nvme.NSIDAll-1, nil), page, nvme.InvalidNamespace},
		{"Identify: namespaces behind all", h.queue, identify(nvme.CNSAllocatedNamespaces, nvme.NSIDAll, nil), page, nvme.InvalidNamespace},
		{"Identify: namespaces of another command set", h.queue, identify(nvme.CNSCommandSetActive, 0, otherSet), page, nvme.InvalidField},
		{"Identify: controllers of namespace 0", h.queue, identify(nvme.CNSAttachedControllers, 0, nil), page, nvme.InvalidNamespace},
		{"Identify: controllers of a namespace too high", h.queue, identify(nvme.CNSAttachedControllers, 1025, nil), page, nvme.InvalidNamespace},
		{"Identify: controllers of all namespaces", h.queue, identify(nvme.CNSAttachedControllers, nvme.NSIDAll, nil), page, nvme.InvalidField},
		{"Identify: limits of another command set", h.queue, identify(nvme.CNSCommandSetController, 0, otherSet), page, nvme.InvalidField},
		{"Identify: command sets of no controller", h.queue, identify(nvme.CNSCommandSets, 0, func(s *nvme.SQE) { s[42], s[43] = 0xEF, 0xFF }), page, nvme.InvalidField},
		{"Identify: no room", h.queue, identify(nvme.CNSController, 0, nil), nil, nvme.SGLDataLengthInvalid},
		{"Get Log Page: not from a whole dword on", h.queue, sqe(func(s *nvme.SQE) { s.NewGetLogPage(nvme.LogError, nvme.NSIDAll, 2, 64) }), page[:64], nvme.InvalidField},
		{"Get Features: the default", h.queue, get(nvme.FeatureArbitration, 0, func(s *nvme.SQE) { s[41] = 1 }), nil, nvme.InvalidField},
		{"Get Features: unknown", h.queue, get(0x7F, 0, nil), nil, nvme.InvalidField},
		{"Get Features: 64 bits of the host identifier", h.queue, get(nvme.FeatureHostID, 0, nil), page[:8], nvme.InvalidField},
		{"Get Features: mask of no namespace", h.queue, get(nvme.FeatureResvMask, 7, nil), nil, nvme.InvalidNamespace},
		{"Get Features: protection of no namespace", h.queue, get(nvme.FeatureWriteProtect, 7, nil), nil, nvme.InvalidNamespace},
		{"Set Features: saved", h.queue, sqe(func(s *nvme.SQE) { s.NewSetFeatures(nvme.FeatureArbitration, 0, 1); s[43] = 0x80 }), nil, nvme.FeatureNotSaveable},
		{"Set Features: unknown", h.queue, set(0x7F, 0, 1), nil, nvme.InvalidField},
		{"Set Features: no keep alive", h.queue, set(nvme.FeatureKeepAlive, 0, 0), nil, nvme.KeepAliveInvalid},
		{"Set Features: write cache", h.queue, set(nvme.FeatureWriteCache, 0, 0), nil, nvme.FeatureNotChangeable},
		{"Set Features: host identifier", h.queue, set(nvme.FeatureHostID, 0, 1), nil, nvme.CommandSequenceError},
		{"Set Features: reservations persist", h.queue, set(nvme.FeatureResvPersist, 1, 1), nil, nvme.FeatureNotChangeable},
		{"Set Features: mask of no namespace", h.queue, set(nvme.FeatureResvMask, 7, 2), nil, nvme.InvalidNamespace},
		{"Set Features: too many submission queues", h.queue, set(nvme.FeatureQueues, 0, 0x0000FFFF), nil, nvme.InvalidField},
		{"Set Features: too many completion queues", h.queue, set(nvme.FeatureQueues, 0, 0xFFFF0000), nil, nvme.InvalidField},
		{"Set Features: queues when there are some", h.queue, set(nvme.FeatureQueues, 0, nvme.QueueCounts(4, 4)), nil, nvme.CommandSequenceError},
		{"Set Features: protection until the power goes", h.queue, set(nvme.FeatureWriteProtect, 1, 2), nil, nvme.InvalidField},
		{"Set Features: protection of no namespace", h.queue, set(nvme.FeatureWriteProtect, 7, 1), nil, nvme.InvalidNamespace},
		{"fused", h.queue, fused(identify(nvme.CNSController, 0, nil)), page, nvme.InvalidField},
		{"fused Fabrics command", h.queue, fused(property), nil, nvme.InvalidField},
		{"property on an I/O queue", io, property, nil, nvme.InvalidOpcode},
		{"another property to be set", h.queue, sqe(func(s *nvme.SQE) { s.NewPropertySet(nvme.PropCSTS, 0) }), nil, nvme.InvalidField},
		{"unknown Fabrics command", h.queue, sqe(func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS); s[4] = 0x7E }), nil, nvme.InvalidOpcode},
		{"unknown Fabrics command of an I/O queue", io, sqe(func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS); s[4] = 0x7E }), nil, nvme.InvalidOpcode},
	} {
		k := c.q.start(c.s, c.in, nil)
		if _, err := c.q.result(k); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := k.cqe.Status(); got != c.want|nvme.DoNotRetry || k.got != 0 {
			t.Errorf("%s: %v with %d bytes, want %v", c.name, got, k.got, c.want)
		}
	}
	if _, err := io.readBlocks(0, 512); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A discovery controller has the commands, pages and features of one, and no others.
func TestRefusedByDiscovery(t *testing.T) {
	r := open(t, nil)
	h := &host{queue: dial(t, r.addr), r: r, data: nvme.ConnectData{HostID: nvme.HostID{15: 10}, CntlID: nvme.CntlIDDynamic, Subsystem: nvme.DiscoveryNQN, Host: hostNQN}}
	if _, err := h.connect(0, h.data, 0); err != nil {
		t.Fatal(err)
	}
	h.enable()
	page := make([]byte, nvme.IdentifyLen)
	for _, c := range []struct {
		name string
		s    nvme.SQE
		in   []byte
		want nvme.Status
	}{
		{"Identify: a namespace", sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSNamespace, 1) }), page, nvme.InvalidField},
		{"Identify: namespaces", sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSActiveNamespaces, 0) }), page, nvme.InvalidField},
		{"health", sqe(func(s *nvme.SQE) { s.NewGetLogPage(nvme.LogSMART, 0, 0, 512) }), page[:512], nvme.InvalidLogPage},
		{"Get Features: queues", sqe(func(s *nvme.SQE) { s.NewGetFeatures(nvme.FeatureQueues, 0) }), nil, nvme.InvalidField},
		{"Set Features: queues", sqe(func(s *nvme.SQE) { s.NewSetFeatures(nvme.FeatureQueues, 0, 3) }), nil, nvme.InvalidField},
		{"Abort", sqe(func(s *nvme.SQE) { s.Init(nvme.AdminAbort, 0) }), nil, nvme.InvalidOpcode},
		{"Format NVM", sqe(func(s *nvme.SQE) { s.NewFormat(1, 0) }), nil, nvme.InvalidOpcode},
		{"Sanitize", sqe(func(s *nvme.SQE) { s.Init(nvme.AdminSanitize, 0) }), nil, nvme.InvalidOpcode},
	} {
		if e, err := h.do(c.s, c.in, nil); e == nil || !errors.Is(err, c.want|nvme.DoNotRetry) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, err := h.do(sqe(func(s *nvme.SQE) { s.NewSetFeatures(nvme.FeatureKeepAlive, 0, 0) }), nil, nil); err != nil {
		t.Errorf("no keep alive: %v", err)
	}
}
