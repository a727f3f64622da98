// Package blockio is the one face of a remote volume above its wire: asynchronous
// requests with real queue depth, the account of what a volatile cache may still lose,
// and the errors, limits and counters that every wire reports alike. A LUN of an iSCSI
// target (package initiator) is a Volume, and so are a namespace of an NVMe subsystem and
// several paths to one of them; loads, NBD exports and the commands of iser-initiator
// know nothing else.
//
//	bench, nbd, attach, iser-initiator
//	             |  *Request
//	          Volume
//	   iSCSI LUN | NVMe namespace | several paths
//
// A request crosses this face with one indirect call, or one per batch, and nothing is
// allocated for it: what a volume has to remember of a request stays in Request.Driver,
// which outlives the single use of the Request.
package blockio
