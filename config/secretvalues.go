package config

import (
	"os"
	"reflect"
	"strings"
)

// SecretValues returns the contents of every file and environment variable that the
// configuration names: those are its secrets, and keys and certificates of TLS. Who prints
// something for strangers leaves them out. What cannot be read is not among them.
func (c *Config) SecretValues() (all [][]byte) {
	eachPlace(reflect.ValueOf(c).Elem(), func(key, place string) {
		if strings.HasSuffix(key, "_env") {
			all = append(all, []byte(os.Getenv(place)))
		} else if b, err := readFile(place, maxSecretFile); err == nil {
			all = append(all, b)
		}
	})
	return all
}

// maxSecretFile is more than any file with secrets has, bytes.
const maxSecretFile = 1 << 20

// place reports whether a key of the model names a file or a variable with a secret: cert
// and key are files of TLS, and the first may hold both.
func place(key string) bool {
	return key == "cert" || key == "key" || strings.HasSuffix(key, "_file") || strings.HasSuffix(key, "_env")
}

// eachPlace calls f for every key that names a file or a variable, and has a value.
func eachPlace(v reflect.Value, f func(key, place string)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			eachPlace(v.Elem(), f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			eachPlace(v.Index(i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				continue
			}
			key := v.Type().Field(i).Tag.Get("mapstructure")
			if s := v.Field(i); s.Kind() == reflect.String && s.String() != "" && place(key) {
				f(key, s.String())
			} else {
				eachPlace(s, f)
			}
		}
	}
}
