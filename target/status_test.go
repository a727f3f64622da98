package target

import (
	"encoding"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"softiser/rdma"
)

// The keys of the status follow one scheme: small letters and underscores, a unit where
// there is one, _total for what only grows; RoCE's counters have the names that Linux gives
// those of rxe.
func TestStatusNames(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	seen := map[reflect.Type]bool{}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] || typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && key == "" { // its fields are among the others
				walk(path, f.Type)
				continue
			}
			at := path + "." + key
			switch {
			case !f.IsExported() || key == "-":
				continue
			case !name.MatchString(key):
				t.Errorf("%s of %v has the key %q", f.Name, typ, key)
			case f.Type == reflect.TypeFor[time.Duration]() && !strings.HasSuffix(key, "_ns"):
				t.Errorf("%s is a time without _ns", at)
			case f.Type.Kind() == reflect.Uint64 && typ != reflect.TypeFor[rdma.RoCECounters]() && !strings.HasSuffix(key, "_total") && !strings.HasSuffix(key, "_bytes") && key != "count":
				t.Errorf("%s is a counter without _total or _bytes", at)
			}
			walk(at, f.Type)
		}
	}
	walk("", reflect.TypeFor[Status]())
	if len(seen) < 8 {
		t.Errorf("only %d types were looked at", len(seen))
	}
}
