package nvmf_test

import (
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// TestPoisonIsPoison: a volume on which a flush has failed is told so whatever that has failed of: more space
// does not help.
func TestPoisonIsPoison(t *testing.T) {
	for _, cause := range []error{nil, blockdev.ErrNoSpace, blockdev.ErrReadOnly} {
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
			err := &blockdev.Error{Kind: blockdev.ErrPoisoned, Cause: cause}
			s.Namespaces[0].Volume = faulty.New(s.Namespaces[0].Volume, 1, faulty.Rule{Op: faulty.Flush, Err: err})
		})
		var s nvme.SQE
		s.Init(nvme.OpFlush, 1)
		_, err := r.attach(hostNQN, 10, 1).io[0].do(s, nil, nil)
		if status, ok := errors.AsType[nvme.Status](err); !ok || status != nvme.WriteFault {
			t.Errorf("by %v: %v", cause, err)
		}
	}
}
