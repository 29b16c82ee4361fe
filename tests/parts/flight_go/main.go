// A stock Arrow Flight client in Go: lists topics, puts rows into one of them or into a table of a tenant and reads them
// again. It knows nothing of Frazil. What it finds goes to stdout as JSON lines. Headers are in FLIGHT_HEADERS, as
// "name value", one in each line.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func say(what string, value any) {
	line, _ := json.Marshal(map[string]any{what: value})
	fmt.Println(string(line))
}

func check(err error) {
	if err != nil {
		say("error", map[string]string{"code": status.Code(err).String(), "message": err.Error()})
		os.Exit(1)
	}
}

func pathOf(topic string) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: strings.Split(topic[1:], "/")}
}

func list(ctx context.Context, client flight.Client, prefix string) {
	stream, err := client.ListFlights(ctx, &flight.Criteria{Expression: []byte(prefix)})
	check(err)
	for {
		info, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		say("flight", info.FlightDescriptor.Path)
	}
}

func put(ctx context.Context, client flight.Client, topic, column string, values []string) {
	stream, err := client.DoPut(ctx)
	check(err)
	schema := arrow.NewSchema([]arrow.Field{{Name: column, Type: arrow.BinaryTypes.String}}, nil)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(pathOf(topic))
	for _, value := range values {
		builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		builder.Field(0).(*array.StringBuilder).Append(value)
		record := builder.NewRecord()
		err = writer.Write(record)
		if err != io.EOF { // an end that the reading side explains
			check(err)
		}
	}
	check(writer.Close())
	check(stream.CloseSend())
	for {
		result, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		say("stored", json.RawMessage(result.AppMetadata))
	}
}

func get(ctx context.Context, client flight.Client, topic string) {
	info, err := client.GetFlightInfo(ctx, pathOf(topic))
	check(err)
	stream, err := client.DoGet(ctx, info.Endpoint[0].Ticket)
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	for reader.Next() {
		record := reader.Record()
		offsets := record.Column(0).(*array.Int64)
		payloads := record.Column(int(record.NumCols()) - 1).(*array.Binary)
		for row := range offsets.Len() {
			say("row", []any{offsets.Value(row), string(payloads.Value(row))})
		}
	}
	check(reader.Err())
}

// Puts one record for each value, in a column of strings and one of numbers, of 32 bits or 64: its index.
func fill(ctx context.Context, client flight.Client, path, column, bits string, values []string) {
	var kind arrow.DataType = arrow.PrimitiveTypes.Int32
	if bits == "64" {
		kind = arrow.PrimitiveTypes.Int64
	}
	stream, err := client.DoPut(ctx)
	check(err)
	schema := arrow.NewSchema([]arrow.Field{{Name: column, Type: arrow.BinaryTypes.String}, {Name: "number", Type: kind}}, nil)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(pathOf("/" + path))
	for index, value := range values {
		builder := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		builder.Field(0).(*array.StringBuilder).Append(value)
		check(builder.Field(1).AppendValueFromString(fmt.Sprint(index)))
		err = writer.Write(builder.NewRecord())
		if err != io.EOF {
			check(err)
		}
	}
	check(writer.Close())
	check(stream.CloseSend())
	for {
		result, err := stream.Recv()
		if err == io.EOF {
			return
		}
		check(err)
		say("stored", json.RawMessage(result.AppMetadata))
	}
}

func rows(ctx context.Context, client flight.Client, path string) {
	info, err := client.GetFlightInfo(ctx, pathOf("/"+path))
	check(err)
	stream, err := client.DoGet(ctx, info.Endpoint[0].Ticket)
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	for reader.Next() {
		record := reader.Record()
		for row := range int(record.NumRows()) {
			found := map[string]any{}
			for at, column := range record.Columns() {
				found[record.ColumnName(at)] = column.GetOneForMarshal(row)
			}
			say("row", found)
		}
	}
	check(reader.Err())
}

func act(ctx context.Context, client flight.Client, name, body string) {
	stream, err := client.DoAction(ctx, &flight.Action{Type: name, Body: []byte(body)})
	check(err)
	answer, err := stream.Recv()
	check(err)
	say("answer", json.RawMessage(answer.Body))
}

// list ADDRESS PREFIX | get ADDRESS TOPIC | put ADDRESS TOPIC COLUMN VALUE...
// fill ADDRESS DATASET/TABLE COLUMN BITS VALUE... | rows ADDRESS DATASET/TABLE | act ADDRESS NAME BODY
func main() {
	client, err := flight.NewClientWithMiddleware(
		os.Args[2], nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	check(err)
	ctx := context.Background()
	for _, line := range strings.Split(os.Getenv("FLIGHT_HEADERS"), "\n") {
		if name, value, found := strings.Cut(line, " "); found {
			ctx = metadata.AppendToOutgoingContext(ctx, name, value)
		}
	}
	switch os.Args[1] {
	case "list":
		list(ctx, client, os.Args[3])
	case "get":
		get(ctx, client, os.Args[3])
	case "put":
		put(ctx, client, os.Args[3], os.Args[4], os.Args[5:])
	case "fill":
		fill(ctx, client, os.Args[3], os.Args[4], os.Args[5], os.Args[6:])
	case "rows":
		rows(ctx, client, os.Args[3])
	case "act":
		act(ctx, client, os.Args[3], os.Args[4])
	}
}
