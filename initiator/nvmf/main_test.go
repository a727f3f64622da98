package nvmf

import (
	"testing"

	"softiser/blockdev"
	"softiser/internal/fsm"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, leaktest.Pool("pool memory", blockdev.DefaultPool().Out))
}

func init() { fsm.OnIllegal = func(err error) { panic(err) } }
