// Package guest builds and boots throwaway Linux guests: real kernels with siw,
// ib_iser, LIO and rdma-core as peers for the tests, under QEMU's software
// emulation, so that neither KVM nor a module of the host is needed.
//
// An image is built once from Debian's packages and cached under the hash of
// what it is made from. A guest boots in a few seconds and then runs scripts
// that the host drops into a shared folder, any number of them at the same time,
// so a case can drive both ends: start I/O in the guest, kill the target on the
// host, look at the guest again.
//
// The guest reaches the host's loopback as 10.0.2.2; Forward makes one of its
// ports reachable on the host's 127.0.0.1.
package guest
