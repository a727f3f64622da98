// Package ublk makes a volume the block device /dev/ublkbN of this machine, through Linux'
// user space block driver (Documentation/block/ublk.rst, include/uapi/linux/ublk_cmd.h).
//
//	/dev/ublkbN ──request──► driver ──io_uring──► queue ──Request──► LUN ──iSER──► target
//	            ◄──────────────────commit, fetch──┘   ▲────Done──────┘
//
// # Queues
//
// A queue has one goroutine with a thread of its own, which the driver insists on. It waits
// in the ring; one system call tells the driver of everything that has ended, fetches the
// next requests and waits. What the volume has carried out comes from its receive goroutine,
// which wakes the queue through an event counter, once for all that ends until it runs.
//
// Each tag has page-aligned memory, one request's worth, that exists from its first use on.
// The driver copies the payload of a write into it before the request arrives, and that of a
// read out of it at the commit; between this memory and the wire nothing copies.
//
// # When this process dies
//
// Devices are made with UBLK_F_USER_RECOVERY and REISSUE: when their server is killed, the
// driver keeps /dev/ublkbN with whoever has it open, holds requests back, and gives what was
// under way to the server that takes the device (Recover), once more. All requests may be
// repeated: they are reads, flushes, and writes, zeroes and discards of whole blocks. What
// the target still had of the first server must not take effect after that; see
// attach.Options.Open.
//
// A device is known by a mark, which the driver keeps for its server: nothing else than the
// kernel remembers a device, and nothing is stale.
//
// # Kernels
//
// 6.1 is the oldest with recovery. Commands are ioctl numbers where the driver says which
// features it has (6.5), and what 6.1 wants otherwise. A device changes its size where the
// driver has UBLK_U_CMD_UPDATE_SIZE (6.16). Before 6.10 a device cannot be removed without
// waiting for the last process that has it open.
package ublk
