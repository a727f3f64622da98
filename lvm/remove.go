package lvm

import "softiser/lvm/meta"

func (g *Group) remove(lv *meta.LV, why string) error {
	return g.removePlain(lv, why)
}
