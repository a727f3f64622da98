package nvmerdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"softiser/internal/nvme"
	"softiser/rdma"
)

// Controller is the controller's side of a connection. It implements
// nvme.QueueTransport.
type Controller struct {
	conn
	req Request
	up  nvme.QueueUpper

	// Guarded by mu.
	slots   slots
	entries int // of the queue
	open    int // commands whose response has not been queued
	due     dueList
	kept    []*command // those that have come while the connection is parked
	// upcalling counts goroutines that are inside upcalls; cond tells of each that leaves.
	upcalling int
	cond      sync.Cond
}

// AcceptConfig is how a connection is accepted.
type AcceptConfig struct {
	RDMA rdma.ConnParams // PrivateData is set by this package
	// Queues is the largest identifier of an I/O queue, Entries the size of the largest
	// queue.
	Queues, Entries int
}

// Accept accepts what is an open TCP connection whose next bytes are an MPA Request, or
// refuses it with the status that NVMe has for that. It takes nc over.
func (d *Device) Accept(ctx context.Context, nc net.Conn, cfg AcceptConfig) (*Controller, error) {
	r, err := rdma.Server(ctx, nc, &rdma.ServerConfig{Timeout: cfg.RDMA.Timeout})
	if err != nil {
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	return d.Answer(ctx, r, cfg)
}

// Answer accepts a request for a connection, or refuses it as Accept does.
func (d *Device) Answer(ctx context.Context, r *rdma.ConnRequest, cfg AcceptConfig) (*Controller, error) {
	req, err := check(r, &cfg)
	if err != nil {
		var no *RejectError
		if errors.As(err, &no) {
			_ = r.Reject(no.data())
		}
		return nil, err
	}
	c, err := d.newController()
	if err != nil {
		_ = r.Reject((&RejectError{Status: RejectNoResources}).data())
		return nil, err
	}
	c.req = req
	p := cfg.RDMA
	p.PrivateData = acceptData(uint16(min(cfg.Entries, int(req.HostSend)+1)))
	if err := r.Accept(ctx, c.qp, &p); err != nil {
		c.discard()
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	c.connected()
	return c, nil
}

// check looks whether a request can be accepted.
func check(r *rdma.ConnRequest, cfg *AcceptConfig) (Request, error) {
	req, err := ParseRequest(r.PrivateData())
	switch {
	case err != nil:
	case int(req.QID) > cfg.Queues:
		err = &RejectError{RejectQID, fmt.Sprintf("queue %d, there are %d", req.QID, cfg.Queues)}
	case r.TellsReads() && r.IRD() == 0:
		err = &RejectError{RejectIRD, "the data of its commands could not be fetched"}
	}
	return req, err
}

func (d *Device) newController() (*Controller, error) {
	c := &Controller{entries: 1}
	c.cond.L = &c.mu
	if err := c.init(d, c, (*owner)(c)); err != nil {
		return nil, err
	}
	return c, nil
}

// Request returns the private data of the host's request.
func (c *Controller) Request() Request { return c.req }

// Start implements nvme.QueueTransport. What has arrived before waits.
func (c *Controller) Start(u nvme.QueueUpper) {
	c.mu.Lock()
	c.up = u
	late, why := c.untold, c.cause
	c.mu.Unlock()
	if late {
		go u.Ended(why) // not here: the caller is not ready for up-calls yet
		return
	}
	c.beginKept() // by the process before this one; nothing comes up yet
	c.begin()
	c.Push()
}

// SetEntries implements nvme.QueueTransport.
func (c *Controller) SetEntries(n int) {
	c.mu.Lock()
	c.entries = n
	c.mu.Unlock()
}

// MaxInCapsule implements nvme.QueueTransport.
func (c *Controller) MaxInCapsule() int { return InCapsule }

// NamesHostMemory implements nvme.QueueTransport.
func (c *Controller) NamesHostMemory(k nvme.SGLKind) bool {
	return k == nvme.SGLKeyed || k == nvme.SGLKeyedInvalidate
}

// Push implements nvme.QueueTransport.
func (c *Controller) Push() { c.push(nil, nil) }

// push implements role. The lock is taken once for each round of up-calls and once more.
func (c *Controller) push(cq *rdma.CQ, wcs []rdma.WC) (more bool) {
	c.mu.Lock()
	if cq != nil {
		more = c.pump.Reap(cq, wcs)
	}
	c.pumpLocked()
	for due := c.takeDueLocked(); due != nil; due = c.takeDueLocked() {
		c.mu.Unlock()
		ended := c.upcalls(due) // may queue more
		c.mu.Lock()
		c.toldLocked(ended)
		c.pumpLocked()
	}
	c.mu.Unlock()
	c.qp.Push()
	return more
}

// takeDueLocked takes the up-calls that are due, for upcalls.
func (c *Controller) takeDueLocked() *command {
	k := c.due.take()
	if k != nil {
		c.upcalling++
	}
	return k
}

// upcalls makes up-calls, and returns the commands that have ended; toldLocked is due
// after it.
func (c *Controller) upcalls(k *command) (ended *command) {
	for k != nil {
		next := k.next
		if k.next = nil; k.ended {
			c.up.Sent(&k.Command)
			k.next, ended = ended, k
		} else {
			err := k.err
			k.err = nil
			c.up.DataArrived(&k.Command, err)
		}
		k = next
	}
	return ended
}

// toldLocked frees the slots of commands that have ended, and enters that the up-calls
// of a takeDueLocked have been made.
func (c *Controller) toldLocked(ended *command) {
	for ended != nil {
		k := ended
		ended = k.next
		c.slots.put(k)
	}
	c.upcalling--
	c.cond.Broadcast()
}

// end implements role: what is due is told, and what that was answered with ends.
func (c *Controller) end(err error) {
	c.Push()
	c.mu.Lock()
	for c.upcalling > 0 {
		c.cond.Wait()
	}
	c.dropKeptLocked()
	c.mu.Unlock()
	c.discard()
	c.mu.Lock()
	u := c.up
	c.untold = u == nil
	c.mu.Unlock()
	if u != nil {
		u.Ended(err)
	}
}

// owner is Controller for its pump. The caller holds mu.
type owner Controller

// Moved implements rdmamsg.Owner: a transfer is over.
func (o *owner) Moved(user any, err error) {
	c := (*Controller)(o)
	switch k := user.(type) {
	case *putOf:
		k.puts--
		c.endDroppedLocked((*command)(k))
	case *command:
		c.gotLocked(k, err)
	}
}

// Sent implements rdmamsg.Owner: the response to the command of a slot has gone.
func (o *owner) Sent(tag int) {
	c := (*Controller)(o)
	k := c.slots.all[tag-1]
	k.ended = true
	c.due.put(k)
}

// Fail implements rdmamsg.Owner.
func (o *owner) Fail(err error) { (*Controller)(o).failLocked(fmt.Errorf("nvmerdma: %w", err)) }
