package iser

import (
	"testing"

	"softiser/internal/fsm"
	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	fsm.OnIllegal = func(err error) { panic(err) }
	leaktest.Main(m)
}
