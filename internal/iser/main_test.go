package iser

import (
	"testing"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) {
	badTransition = func(err error) { panic(err) }
	leaktest.Main(m)
}
