package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"syscall"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/connflags"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
	"softiser/internal/nvme"
	callerr "softiser/internal/usage"
	"softiser/rdma"
)

// Exit codes; where open-iscsi has one for the case it is the same number.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitDiffer   = 3
	exitConnect  = 4
	exitLogin    = 5
	exitConflict = 6
	exitTimeout  = 8
	exitNotFound = 21
	exitAuth     = 24
)

const exitHelp = `Exit codes:
  0  success
  1  error (the message says which)
  2  wrong usage
  3  verify: the contents differ
  4  the connection could not be made, or was lost for good
  5  the target refused the login
  6  a reservation or a registration of somebody else is in the way
  8  time-out
 21  nothing found (discover), or no such target or LUN
 24  authentication or authorization failed
128  bench: a signal has ended the run early, without a failure until then`

// errReported ends a command that has said itself what is wrong.
var errReported = errors.New("reported")

// codedError is an error with its exit code.
type codedError struct {
	code int
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// usage is an error in how the command was called.
func usage(format string, args ...any) error {
	return &codedError{exitUsage, fmt.Errorf(format, args...)}
}

// advice is what to do about a connection that could not be made.
func advice(err error) string {
	var wrong *initiator.WrongProtocolError
	var other *nvmf.WrongTransportError
	switch {
	case errors.As(err, &wrong), errors.As(err, &other): // which say what there is instead
		return ""
	case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
		return "; this machine has no way to that address: is it the target's (ip route get ADDRESS)?"
	case errors.Is(err, syscall.EINVAL) && linkLocal(err):
		return "; an address that begins with fe80: needs an interface of this machine (ip link), as in [fe80::1%eth0]"
	case errors.Is(err, syscall.ECONNRESET) && errors.Is(err, blockio.ErrNoConnection):
		return "; the other end closed the connection without an answer, as a portal does that requires TLS or leaves this transport out: the target's log says why"
	case !errors.Is(err, syscall.ECONNREFUSED):
		return ""
	}
	const refused = "; nothing listens there: is the server running, at this address and port?"
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if a, ok := op.Addr.(*net.TCPAddr); ok && (strconv.Itoa(a.Port) == nvmf.DefaultPort || strconv.Itoa(a.Port) == nvmf.DiscoveryPort) {
			return refused + fmt.Sprintf(" %d is what NVMe has where a URL names no port; iser-target has all wires on 3260 if nothing else is configured", a.Port)
		}
	}
	return refused
}

// linkLocal reports whether err is about a link-local address of IPv6.
func linkLocal(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok {
		return false
	}
	a, ok := op.Addr.(*net.TCPAddr)
	return ok && a.IP.To4() == nil && a.IP.IsLinkLocalUnicast()
}

// What may be a secret in a URL: behind the user's name, and in an option.
var (
	userSecret   = regexp.MustCompile(`(://[^\s/@%]*)%[^\s/@]*@`)
	optionSecret = regexp.MustCompile(`([?&][a-z_]*password=)[^\s&"]*`)
)

// withoutSecrets takes them out of a message: one about an argument in the wrong place repeats it, and it
// may be a URL.
func withoutSecrets(s string) string {
	return optionSecret.ReplaceAllString(userSecret.ReplaceAllString(s, "${1}%…@"), "${1}…")
}

// exitCode maps an error to the code that scripts see.
func exitCode(err error) int {
	var coded *codedError
	var le *iscsi.LoginError
	var op *net.OpError
	var ce *blockio.ConfigError
	var ue *connflags.UsageError
	var other *callerr.Exit
	var refused *nvmf.ConnectError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &other):
		return other.Code
	case callerr.Is(err), errors.As(err, &ce), errors.As(err, &ue):
		return exitUsage
	case errors.Is(err, blockio.ErrReservation):
		return exitConflict
	case errors.As(err, &le):
		switch le.Status {
		case iscsi.LoginAuthFailure, iscsi.LoginForbidden:
			return exitAuth
		case iscsi.LoginNotFound, iscsi.LoginTargetRemoved:
			return exitNotFound
		}
		return exitLogin
	case errors.As(err, &refused):
		switch nvme.Status(refused.Status) {
		case nvme.ConnectInvalidHost, nvme.AuthenticationRequired:
			return exitAuth
		case nvme.ConnectInvalidParameters:
			return exitNotFound
		}
		return exitLogin
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, blockio.ErrTimeout), errors.Is(err, rdma.ErrTimeout):
		return exitTimeout
	case errors.Is(err, blockio.ErrNoLUN):
		return exitNotFound
	case errors.Is(err, blockio.ErrNoConnection) && !errors.Is(err, context.Canceled), errors.As(err, &op) && op.Op != "listen" && !errors.Is(op, context.Canceled), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, blockio.ErrSessionLost),
		errors.Is(err, rdma.ErrRejected), errors.Is(err, rdma.ErrRefused):
		return exitConnect
	}
	return exitError
}
