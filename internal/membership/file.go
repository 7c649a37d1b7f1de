package membership

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/enrol"
)

// The files in Config.Dir.
const (
	enrolmentFile = "enrolment.json"
	directoryFile = "directory"
)

// Enrolment has the addresses of the coordinators and the bus, which this host got with its certificate. It is not secret, but
// useless to others.
type Enrolment struct {
	BusJWT       string           `json:"bus-jwt"`
	BusServers   []enrol.Endpoint `json:"bus-servers"`
	Coordinators []enrol.Endpoint `json:"coordinators"`
}

// EnrolmentOf returns the part of a welcome that is saved.
func EnrolmentOf(w enrol.Welcome) Enrolment {
	return Enrolment{BusJWT: w.BusJWT, BusServers: w.BusServers, Coordinators: w.Coordinators}
}

// Save writes e to a member's directory, which it makes if there is none.
func (e Enrolment) Save(dir string) error {
	data, err := json.MarshalIndent(e, "", "\t")
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = durable.Replace(filepath.Join(dir, enrolmentFile), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("save what the coordinators sent: %w", err)
	}
	return nil
}

// LoadEnrolment reads what Save has written. It returns the zero value if there is none, and also, with an error, if it
// cannot be read: the next renewal brings another.
func LoadEnrolment(dir string) (Enrolment, error) {
	path := filepath.Join(dir, enrolmentFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Enrolment{}, nil
	}
	var e Enrolment
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	for _, list := range [][]enrol.Endpoint{e.BusServers, e.Coordinators} {
		for i := 0; err == nil && i < len(list); i++ {
			err = list[i].Check()
		}
	}
	if err != nil {
		return Enrolment{}, fmt.Errorf("%s cannot be read, a new one is asked for: %w", path, err)
	}
	return e, nil
}
