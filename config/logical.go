package config

func (v *Volume) hasLayout() bool {
	return v.Stripes != 0 || v.StripeSize != 0 || v.Pool != "" || v.PoolSize != 0 || v.ErrorWhenFull
}

// checkLayout: how a logical volume that is created lies on its devices.
func checkLayout(r *report, key string, v *Volume) {
	if v.hasLayout() && !v.Create {
		r.add(key, "stripes, stripe_size, pool, pool_size and error_when_full say how a volume is created; add create: true")
	}
	if v.Stripes < 0 || v.Stripes > 128 {
		r.add(key+".stripes", "%d must be between 1 and 128", v.Stripes)
	}
	if s := v.StripeSize; s != 0 && (s < 4096 || s&(s-1) != 0) {
		r.add(key+".stripe_size", "%s must be a power of two from 4KiB on", s)
	}
	if v.StripeSize != 0 && v.Stripes < 2 {
		r.add(key+".stripe_size", "needs stripes: 2 or more")
	}
	if v.PoolSize < 0 {
		r.add(key+".pool_size", "is negative")
	}
	if v.Pool == "" && (v.PoolSize != 0 || v.ErrorWhenFull) {
		r.add(key+".pool", "missing; pool_size and error_when_full are about the thin pool of that name")
	}
	if v.Pool != "" && v.PoolSize == 0 && (v.Stripes != 0 || v.ErrorWhenFull) {
		r.add(key+".pool_size", "missing; stripes and error_when_full of a thin volume are those of a pool that is created")
	}
	if v.Pool != "" && v.Pool == v.LV {
		r.add(key+".pool", "%q is the name of the volume itself", v.Pool)
	}
}

// checkOwn refuses what a logical volume has of its own, or not at all. A promise that nobody
// keeps, as write_through would be, is worse than none.
func checkOwn(r *report, key string, v *Volume) {
	if v.WriteThrough {
		r.add(key+".write_through", "a logical volume has a write cache: what an initiator flushes, or writes with FUA, is durable, and nothing else. Leave it out")
	}
	if v.BlockSize != 512 || v.PhysBlockSize != 4096 { // what fillDefaults says
		r.add(key+".block_size", "the blocks of a logical volume are those of its devices; leave block_size and phys_block_size out")
	}
	if v.Lock {
		r.add(key+".lock", "a logical volume has no mapping of its own to lock")
	}
	if v.Rotational {
		r.add(key+".rotational", "a logical volume is rotational if one of its devices is; leave it out")
	}
	if v.Fault != (Fault{}) {
		r.add(key+".fault", "a logical volume cannot be made to fail on purpose")
	}
}
